// Puts the work of a step of one epoch on streams.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/cuda/prepared.h"
#include "kernels/cuda/row_copy.h"

namespace agmm {

// For the GPU's thread. The arguments must outlive it. `staged` is the step's own pinned memory, if
// it needs any.
class StepWork {
 public:
  StepWork(const CudaPrepared& prepared, const Operands& operands)
      : prepared_(prepared), gpu_(prepared.gpu()), operands_(operands) {}

  // Puts the step, the only one of its unit, on the stream of its lane.
  absl::Status Put(int step, std::byte* staged) const;
  // Puts the second half of a copy through pinned memory on its stream, whose GPU must be current.
  absl::Status PutHalf(int step, const CudaPrepared::Through& half, std::byte* staged) const;

 private:
  absl::Status Do(int step, const CudaCopy& copy, std::byte* staged) const;
  absl::Status Do(int step, const CudaMultiply& multiply, std::byte* staged) const;
  absl::Status Do(int step, const ReduceOp& reduce, std::byte* staged) const;
  static absl::Status Do(int, const Join&, std::byte*) { return absl::OkStatus(); }
  CUdeviceptr AddressOf(const HeapPlace& place) const;
  RowsEnd EndAt(const HeapPlace& place) const;
  elementwise::Matrix MatrixAt(const HeapPlace& place) const;
  CUstream StreamOf(int step) const {
    return prepared_.stream(prepared_.program().steps[step].lane);
  }

  const CudaPrepared& prepared_;
  Gpu& gpu_;
  const Operands& operands_;
};

}  // namespace agmm
