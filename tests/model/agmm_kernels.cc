// The kernels of kernels/cuda, made from the bodies that they share with the host.
#include "kernels/cuda/elementwise.h"
#include "tests/model/kernels.h"

namespace model {
namespace {

using agmm::elementwise::Convert;
using agmm::elementwise::Fill;
using agmm::elementwise::Matrix;
using agmm::elementwise::Reduce;

// Returns the access of a launch to a matrix; empty for a matrix without data.
Access Touch(const Matrix& matrix, int64_t rows, int64_t cols, bool writes) {
  return {{reinterpret_cast<uint64_t>(matrix.data), matrix.data ? rows : 0,
           cols * agmm::SizeOf(matrix.dtype), matrix.pitch_bytes},
          writes};
}

// Moves the matrix to the engine's address.
void Find(Matrix& matrix) {
  if (matrix.data) matrix.data = At<void>(reinterpret_cast<CUdeviceptr>(matrix.data));
}

template <typename Work>
std::function<void(int64_t)> ForEach(const Work& work) {
  return [work](int64_t element) {
    agmm::elementwise::Element(work, element / work.cols, element % work.cols);
  };
}

Launch LaunchConvert(Convert work) {
  const std::vector<Access> accesses = {Touch(work.from, work.rows, work.cols, false),
                                        Touch(work.to, work.rows, work.cols, true)};
  Find(work.from);
  Find(work.to);
  return {accesses, work.rows * work.cols, ForEach(work)};
}

Launch LaunchReduce(Reduce work) {
  std::vector<Access> accesses = {Touch(work.to, work.rows, work.cols, true)};
  Find(work.to);
  for (int term = 0; term < work.terms; ++term) {
    accesses.push_back(Touch(work.from[term], work.rows, work.cols, false));
    Find(work.from[term]);
  }
  return {accesses, work.rows * work.cols, ForEach(work)};
}

Launch LaunchFill(Fill work) {
  const std::vector<Access> accesses = {Touch(work.to, work.rows, work.cols, true)};
  Find(work.to);
  return {accesses, work.rows * work.cols, ForEach(work)};
}

}  // namespace

std::vector<Kernel> AgmmKernels() {
  return {Row("agmm_convert", LaunchConvert), Row("agmm_reduce", LaunchReduce),
          Row("agmm_fill", LaunchFill)};
}

}  // namespace model
