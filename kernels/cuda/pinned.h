// A rank's pinned memory, through which its bytes travel to other nodes and to GPUs without peer
// access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/gpu.h"

namespace agmm {

// Pinned bytes of the host. Any GPU may copy to and from them. Not freed for a GPU that is given
// up.
class PinnedBytes {
 public:
  static absl::StatusOr<std::unique_ptr<PinnedBytes>> Create(std::shared_ptr<Gpu> gpu,
                                                             int64_t bytes);
  ~PinnedBytes();
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  PinnedBytes(std::shared_ptr<Gpu> gpu, std::byte* data, int64_t bytes)
      : gpu_(std::move(gpu)), data_(data), bytes_(bytes) {}
  const std::shared_ptr<Gpu> gpu_;
  std::byte* const data_;
  const int64_t bytes_;
};

// Thread-safe.
class Staging {
 public:
  explicit Staging(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  // Ensures that Take(bytes) succeeds while nothing else is taken. Errors: RESOURCE_EXHAUSTED.
  absl::Status Reserve(int64_t bytes);
  // Returns `bytes` on a cache line, or null until others are returned.
  std::byte* Take(int64_t bytes);
  void Give(std::byte* taken);
  int64_t bytes() const;

 private:
  struct Region {
    std::unique_ptr<PinnedBytes> memory;
    std::map<int64_t, int64_t> taken;  // bytes, by offset
  };
  const std::shared_ptr<Gpu> gpu_;
  mutable std::mutex mutex_;
  std::vector<Region> regions_;
};

}  // namespace agmm
