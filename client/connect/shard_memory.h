// The memory of a mapped shard, at an address that stays the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace agmm {

// Thread-compatible. A forked child does not inherit the shard.
class ShardMemory {
 public:
  // Maps `bytes` > 0 of a file, which must begin and may end anywhere in a page. Errors: the
  // system's.
  static absl::StatusOr<ShardMemory> Map(int file, int64_t offset_bytes, int64_t bytes,
                                         bool writable);
  ShardMemory(ShardMemory&& other) noexcept;
  ShardMemory& operator=(ShardMemory&&) = delete;
  ~ShardMemory();  // unmaps it

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Hide moves the shard to another address. At data() it leaves private memory that reads as NaN
  // in every element type, so that a use by mistake shows; behind the first 512 MiB, zeros. If
  // Linux has no room for that, a use faults. Show moves the shard back, and drops what was written
  // meanwhile. Neither touches the shard's pages. Return false if Linux cannot; the caller then
  // drops the shard.
  bool Hide();
  bool Show();
  // Unmaps the shard, and leaves at data() what Hide does. Returns false if the shard is still
  // mapped, until the destructor; a use then faults.
  bool Drop();

 private:
  ShardMemory(void* data, int64_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}

  std::byte* data_;
  int64_t bytes_;
  void* aside_ = nullptr;  // the shard's address while it is hidden
};

}  // namespace agmm
