// Packed copies of blocks of B: for each block, one copy of the latest version of its contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/cpu/cpu_gemm.h"

namespace agmm {

// Guarded by the device's monitor.
class PackCache {
 public:
  // A block of B in memory, and the kernel that it is packed for.
  struct Key {
    const std::byte* address = nullptr;
    int64_t pitch_bytes = 0, n = 0, k = 0;
    DType dtype = DType::kF32;
    GemmKernel kernel = GemmKernel::kF32;
    auto operator<=>(const Key&) const = default;
  };
  struct Lookup {
    std::shared_ptr<const PackedB> packed;  // null: not in the cache
    bool busy = false;  // another worker is packing it and will call Fill or Abandon
  };

  Lookup Find(const Key& key, uint64_t version) const;
  // Claims the packing of `key`, and forgets all copies of other versions of its bytes.
  void Claim(const Key& key, uint64_t version);
  void Fill(const Key& key, uint64_t version, std::shared_ptr<const PackedB> packed);
  void Abandon(const Key& key, uint64_t version);
  // Forgets all copies of bytes in [begin, end).
  void Forget(const std::byte* begin, const std::byte* end);

  // Memory of all packed copies.
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
