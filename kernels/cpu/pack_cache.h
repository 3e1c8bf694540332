// Packed copies of B blocks. They belong to the contents: one a block and version, the latest
// version only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/cpu/cpu_gemm.h"

namespace agmm {

// Not thread-safe: guarded by the device's monitor.
class PackCache {
 public:
  // A block of B in memory.
  struct Key {
    const std::byte* address = nullptr;
    int64_t pitch_bytes = 0, n = 0, k = 0;
    DType dtype = DType::kF32;
    auto operator<=>(const Key&) const = default;
  };
  struct Lookup {
    std::shared_ptr<const PackedB> packed;  // null: not there
    bool busy = false;  // another worker is packing it; it will call Fill or Abandon
  };

  Lookup Find(const Key& key, uint64_t version) const;
  // Claims the packing of `key`, and forgets every older version of the bytes it covers.
  void Claim(const Key& key, uint64_t version);
  void Fill(const Key& key, uint64_t version, std::shared_ptr<const PackedB> packed);
  void Abandon(const Key& key, uint64_t version);
  // Forgets every copy of bytes in [begin, end).
  void Forget(const std::byte* begin, const std::byte* end);

  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    uint64_t version = 0;
    std::shared_ptr<const PackedB> packed;
  };
  void Erase(std::map<Key, Entry>::iterator it);

  std::map<Key, Entry> entries_;
  int64_t bytes_ = 0;
};

}  // namespace agmm
