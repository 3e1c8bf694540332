// The GEMM of the CPU device, over pieces of A and a packed B: bf16 by tiles (tiles.h) where there
// are any, all else by oneDNN matmul primitives.
//
// Those are created for one OpenMP thread; the parallelism is the caller's workers. All their
// descriptors of A and C pieces are dense: only for those does oneDNN 2.6 take its fast kernels
// (NOTES.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/convert.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace agmm {

// The dtype in which oneDNN multiplies operands of `dtype` on this machine: bf16 where it can, else
// f32.
DType ComputeDType(DType dtype);
// Whether pieces of A and C may have any pitch, multiplied in `compute`; else they are dense.
bool MultipliesAnyPitch(DType compute);
// Whether a row's sums do not depend on how many rows its piece has: then C is bit-identical
// however its rows were cut. So with AVX-512; without it oneDNN takes other kernels for other
// numbers of rows.
bool RowsSumAlike();
// "oneDNN 2.6.3, avx512_bf16".
std::string GemmDescription();

// Memory on a cache line that only grows. Not thread-safe.
class Scratch {
 public:
  ~Scratch();
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  // At least `bytes`; the contents are lost when it grows. Throws std::bad_alloc, and is what it
  // was.
  std::byte* Get(int64_t bytes);
  int64_t bytes() const { return bytes_; }
  // How often it grew.
  int64_t allocations() const { return allocations_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t allocations_ = 0;
};

// A block of B in the layout that the matmuls of its (n, k, dtype) want. Immutable once packed.
struct PackedB {
  dnnl::memory memory;
  int64_t bytes = 0;
};

// What a worker needs of each of its scratches, in bytes.
struct ScratchNeed {
  int64_t a = 0, c = 0, scratchpad = 0;
  // Raises this to what `other` needs; false if it was enough.
  bool Cover(const ScratchNeed& other);
};

// What one worker thread needs beside its operands. Construct on the worker: sets its OpenMP
// threads to 1.
struct GemmWorker {
  explicit GemmWorker(int index);
  const int index;
  dnnl::stream stream;
  Scratch a, c, scratchpad;
  void Reserve(const ScratchNeed& need);  // throws as Get
  uint64_t needs_met = 0;                 // the launch queue's
  int64_t scratch_bytes() const { return a.bytes() + c.bytes() + scratchpad.bytes(); }
  int64_t allocations() const {
    return a.allocations() + c.allocations() + scratchpad.allocations();
  }
};

// C[m, n] (+)= A[m, k] * B[k, n] for one (m, n, k, dtypes).
class Matmul {
 public:
  struct Key {
    int64_t m = 0, n = 0, k = 0;
    DType dtype = DType::kF32;  // of A and B as multiplied: ComputeDType
    DType out = DType::kF32;    // f32, or bf16 where dtype is bf16
    bool add = false;           // C += (f32 only)
    auto operator<=>(const Key&) const = default;
  };
  // Writes (adds to) C at the calling worker's cost alone. A and C are of key.dtype and key.out,
  // and dense unless MultipliesAnyPitch.
  absl::Status Run(ConstMatrix a, const PackedB& b, Matrix c, GemmWorker& worker) const;
  // What Run takes of a worker's scratch.
  ScratchNeed Need() const;
  // Packs B[k, n], of any dtype, for this matmul and every other of its (n, k, dtype).
  absl::StatusOr<PackedB> Pack(ConstMatrix b, GemmWorker& worker) const;

 private:
  friend class GemmLibrary;
  struct Arguments {
    dnnl::memory a, c, scratchpad;
  };
  explicit Matmul(const Key& key);  // by tiles
  Matmul(const Key& key, const dnnl::matmul::primitive_desc& desc, int workers);
  absl::Status Execute(const std::byte* a, const PackedB& b, std::byte* c,
                       GemmWorker& worker) const;

  const Key key_;
  const bool tiles_;
  const int64_t scratchpad_bytes_;
  const dnnl::memory::desc packed_layout_;
  dnnl::matmul primitive_;
  mutable std::vector<Arguments> arguments_;  // by worker; each touches its own only
};

// Makes and shares matmuls. One a device; thread-safe.
class GemmLibrary {
 public:
  explicit GemmLibrary(int workers) : workers_(workers) {}

  // Cached as long as somebody holds it. Errors: UNIMPLEMENTED where oneDNN has no such matmul.
  absl::StatusOr<std::shared_ptr<const Matmul>> Get(const Matmul::Key& key);

 private:
  const int workers_;
  std::mutex mutex_;
  std::map<Matmul::Key, std::weak_ptr<const Matmul>> matmuls_;
};

}  // namespace agmm
