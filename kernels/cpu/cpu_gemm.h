// The GEMM of the CPU device, over pieces of A and a packed B: oneDNN matmul primitives, and the
// loop over AMX tiles of tiles.h. Only the processor's features choose between them, not
// measurements, so that equal processors give equal bits at every start (NOTES.md).
//
// ONEDNN_MAX_CPU_ISA limits the choice, for tests of smaller processors: AVX512_CORE_BF16 excludes
// the tiles, AVX512_CORE also excludes oneDNN's bf16.
//
// The primitives are created for one OpenMP thread, because the caller's workers are the
// parallelism. Their pieces of A and C are dense, because oneDNN 2.6 has no fast kernels for other
// layouts (NOTES.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
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

enum class GemmKernel {
  kF32,    // oneDNN in f32; narrower operands are widened
  kBF16,   // oneDNN in bf16
  kTiles,  // bf16 by AMX tiles; A and C may have any pitch
};
// The dtype in which `kernel` reads A and B.
DType InputOf(GemmKernel kernel);
// oneDNN's name for the code behind kF32 or kBF16, such as "brg:avx512_core", for pieces of a usual
// shape; empty if oneDNN has no such matmul on this processor.
std::string OneDnnCode(GemmKernel kernel);
// Returns true if this processor has the kernel.
bool Has(GemmKernel kernel);
// Returns the fastest kernel for products of operands of `dtype` that is exact for whole numbers.
// It depends neither on the rows of a product nor on the cuts of an algorithm, so that a row of C
// has the same bits in any batch.
GemmKernel KernelFor(DType dtype);
// "oneDNN 2.6.3 (brg:avx512_core), bf16 widened to f32".
std::string GemmDescription();

// Memory on a cache line that only grows. Not thread-safe.
class Scratch {
 public:
  ~Scratch();
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  // Returns at least `bytes`; the contents are lost when it grows. If it throws std::bad_alloc, it
  // is unchanged.
  std::byte* Get(int64_t bytes);
  int64_t bytes() const { return bytes_; }
  // The number of times it grew.
  int64_t allocations() const { return allocations_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t allocations_ = 0;
};

// A block of B in the layout that the matmuls of its (n, k, kernel) read. Immutable once packed.
struct PackedB {
  dnnl::memory memory;
  int64_t bytes = 0;  // in that layout: a widened B takes twice the bytes of its bf16 shard
};

// Bytes of each scratch of a worker.
struct ScratchNeed {
  int64_t a = 0, c = 0, scratchpad = 0;
  // Raises this to cover `other`; returns false if it covered it already.
  bool Cover(const ScratchNeed& other);
};

// A worker thread's own stream and scratch. Construct it on that thread, because it sets the
// thread's OpenMP thread count to 1.
struct GemmWorker {
  explicit GemmWorker(int index);
  const int index;
  dnnl::stream stream;
  Scratch a, c, scratchpad;
  void Reserve(const ScratchNeed& need);  // throws like Get
  uint64_t needs_met = 0;                 // counted by CpuWorkers
  int64_t scratch_bytes() const { return a.bytes() + c.bytes() + scratchpad.bytes(); }
  int64_t allocations() const {
    return a.allocations() + c.allocations() + scratchpad.allocations();
  }
};

// C[m, n] (+)= A[m, k] * B[k, n] for one (m, n, k, kernel).
class Matmul {
 public:
  struct Key {
    int64_t m = 0, n = 0, k = 0;
    GemmKernel kernel = GemmKernel::kF32;
    DType out = DType::kF32;  // f32, or bf16 if the kernel's input is bf16
    bool add = false;         // C += (f32 only)
    auto operator<=>(const Key&) const = default;
  };
  // Multiplies on the calling thread. A is of InputOf(key.kernel), C of key.out; both are dense
  // unless the kernel is kTiles.
  absl::Status Run(ConstMatrix a, const PackedB& b, Matrix c, GemmWorker& worker) const;
  // Bytes of the worker's scratchpad that Run takes.
  int64_t scratchpad_bytes() const { return scratchpad_bytes_; }
  // Packs B[k, n], of any dtype, for this matmul and every other of its (n, k, kernel).
  absl::StatusOr<PackedB> Pack(ConstMatrix b, GemmWorker& worker) const;
  // Returns a packed B whose bytes are at `memory`, on a cache line, for PackAgain to fill. Throws
  // like oneDNN.
  PackedB PackedAt(std::byte* memory) const;
  int64_t packed_bytes() const { return static_cast<int64_t>(packed_layout_.get_size()); }
  // Bytes of scratch in which PackAgain widens a B of `dtype`.
  int64_t widened_bytes(DType dtype) const;
  // Packs B again into `packed`. Allocates nothing if `widened` has widened_bytes.
  absl::Status PackAgain(ConstMatrix b, GemmWorker& worker, Scratch& widened,
                         PackedB& packed) const;

 private:
  friend class GemmLibrary;
  struct Arguments {
    dnnl::memory a, c, scratchpad;
  };
  explicit Matmul(const Key& key);  // by tiles
  Matmul(const Key& key, const dnnl::matmul::primitive_desc& desc, int workers);
  absl::Status Execute(const std::byte* a, const PackedB& b, std::byte* c,
                       GemmWorker& worker) const;
  absl::Status NotPacked(ConstMatrix b, const std::exception& error) const;

  const Key key_;
  const int64_t scratchpad_bytes_;
  const dnnl::memory::desc packed_layout_;
  dnnl::matmul primitive_;
  mutable std::vector<Arguments> arguments_;  // by worker; each uses its own
};

// Makes and shares matmuls. One per device; thread-safe.
class GemmLibrary {
 public:
  explicit GemmLibrary(int workers) : workers_(workers) {}

  // Returns a matmul, which is cached while a caller holds it. Errors: UNIMPLEMENTED if oneDNN has
  // no such matmul.
  absl::StatusOr<std::shared_ptr<const Matmul>> Get(const Matmul::Key& key);

 private:
  const int workers_;
  std::mutex mutex_;
  std::map<Matmul::Key, std::weak_ptr<const Matmul>> matmuls_;
};

}  // namespace agmm
