// One rank's part of a schedule in the form that the workers of a CPU device run, with every step
// cut into pieces. Immutable while epochs run.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/device/lower.h"

namespace agmm {

// Rows of a step that one worker handles at a time; rows of to[target] in a copy.
struct Piece {
  int target = 0;
  int64_t row = 0, rows = 0;
};

// A multiply, and the matmuls that make it.
struct GemmOp : MultiplyOp {
  GemmKernel kernel = GemmKernel::kF32;
  std::shared_ptr<const Matmul> full, last;  // for a piece of piece_rows, and for the last one
  bool direct = false;      // the matmul writes to the result's place, not into scratch
  DType sum = DType::kF32;  // the dtype that the matmul writes
};

struct ProgramStep : StepEdges {
  std::variant<CopyOp, GemmOp, ReduceOp, Join> op;
  std::vector<Piece> pieces;
};

struct Program {
  std::vector<ProgramStep> steps;
  std::vector<std::vector<int>> lanes;  // step indices in order
  std::vector<int64_t> chip_bytes;      // by lane: room for sums between multiplies
  std::vector<int64_t> packed_bytes;    // by lane: room for a packed B that has arrived
  int slots = 0;
  bool zero_denormals = false;  // in sums, because the operands are of bf16
};

// Returns the program's memory, as malloc counts it, without the matmuls, which programs share.
int64_t SizeBytes(const Program& program);

// Lowers the steps of `plan`, cuts them into pieces for `threads` workers and makes the matmuls.
// Errors: those of LowerRank, and INVALID_ARGUMENT for a peer whose memory is not the host's.
absl::StatusOr<Program> MakeProgram(const RankPlan& plan, int threads, GemmLibrary& library);

// Returns the rows of a place on this node from `row` on.
inline Matrix MatrixAt(const HeapPlace& place, const Operands& operands, int64_t row) {
  return {place.heap->host().data() + place.RowOffset(operands, row), place.pitch_bytes,
          place.dtype};
}

}  // namespace agmm
