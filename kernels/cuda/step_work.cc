#include "kernels/cuda/step_work.h"

#include <variant>

#include "kernels/base/status.h"

namespace agmm {

absl::Status StepWork::Put(int index, std::byte* staged) const {
  return std::visit([&](const auto& op) { return Do(index, op, staged); },
                    prepared_.program().steps[index].op);
}

absl::Status StepWork::PutHalf(int index, const CudaPrepared::Through& half,
                               std::byte* staged) const {
  const CudaCopy& copy = *prepared_.program().steps[index].copy();
  return CopyRowsOn(half.stream->gpu(), {0, staged, copy.row_bytes}, EndAt(copy.to[half.to]),
                    copy.rows, copy.row_bytes, half.stream->get());
}

absl::Status StepWork::Do(int index, const CudaCopy& copy, std::byte* staged) const {
  const CUstream stream = StreamOf(index);
  const RowsEnd from = EndAt(copy.from);
  if (copy.staged_bytes > 0) {
    AGMM_RETURN_IF_ERROR(
        CopyRowsOn(gpu_, from, {0, staged, copy.row_bytes}, copy.rows, copy.row_bytes, stream));
  }
  for (size_t i = 0; i < copy.to.size(); ++i) {
    if (copy.ways[i] != CudaCopy::Way::kDirect) continue;
    AGMM_RETURN_IF_ERROR(
        CopyRowsOn(gpu_, from, EndAt(copy.to[i]), copy.rows, copy.row_bytes, stream));
  }
  return absl::OkStatus();
}

absl::Status StepWork::Do(int index, const CudaMultiply& multiply, std::byte*) const {
  const int lane = prepared_.program().steps[index].lane;
  const CUstream stream = StreamOf(index);
  elementwise::Matrix sum;
  switch (multiply.sum) {
    case CudaMultiply::Sum::kOut: sum = MatrixAt(multiply.out); break;
    case CudaMultiply::Sum::kAcc: sum = MatrixAt(multiply.acc); break;
    case CudaMultiply::Sum::kChip:
      sum = {reinterpret_cast<void*>(prepared_.chip(lane)), ChipPitchBytes(multiply.n),
             DType::kF32};
  }
  if (multiply.load) {
    AGMM_RETURN_IF_ERROR(
        CopyRowsOn(gpu_, EndAt(multiply.acc),
                   {reinterpret_cast<CUdeviceptr>(sum.data), nullptr, sum.pitch_bytes},
                   multiply.rows, multiply.n * SizeOf(DType::kF32), stream));
  }
  AGMM_RETURN_IF_ERROR(
      gpu_.Check(prepared_.product(index).Run(AddressOf(multiply.a), AddressOf(multiply.b),
                                              reinterpret_cast<CUdeviceptr>(sum.data),
                                              prepared_.workspace(lane), stream),
                 "cublasLtMatmul"));
  if (!multiply.convert) return absl::OkStatus();
  return gpu_.Check(
      gpu_.kernels().Launch(
          elementwise::Convert{sum, MatrixAt(multiply.out), multiply.rows, multiply.n}, stream),
      "cuLaunchKernel");
}

absl::Status StepWork::Do(int index, const ReduceOp& reduce, std::byte*) const {
  static_assert(elementwise::Reduce::kMostTerms > kMostTerms, "`acc` is one more");
  elementwise::Reduce work;
  if (reduce.accumulate) work.from[work.terms++] = MatrixAt(reduce.acc);
  for (const HeapPlace& from : reduce.from) work.from[work.terms++] = MatrixAt(from);
  work.to = MatrixAt(reduce.finish ? reduce.out : reduce.acc);
  work.rows = reduce.rows;
  work.cols = reduce.cols;
  return gpu_.Check(gpu_.kernels().Launch(work, StreamOf(index)), "cuLaunchKernel");
}

RowsEnd StepWork::EndAt(const HeapPlace& place) const {
  return {AddressOf(place), nullptr, place.pitch_bytes};
}

CUdeviceptr StepWork::AddressOf(const HeapPlace& place) const {
  return prepared_.heap(place.rank) + place.RowOffset(operands_, 0);
}

elementwise::Matrix StepWork::MatrixAt(const HeapPlace& place) const {
  return {reinterpret_cast<void*>(AddressOf(place)), place.pitch_bytes, place.dtype};
}

}  // namespace agmm
