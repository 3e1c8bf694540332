#include "kernels/cpu/piece_math.h"

#include <array>

#include "kernels/base/status.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/zero_denormals.h"
#include "kernels/schedule/step_op.h"

namespace agmm {
namespace {

// Returns true if A has to be copied before it is multiplied: to widen it, or to make its rows
// dense.
bool CopiesA(const GemmOp& op) {
  const DType input = InputOf(op.kernel);
  if (op.a.dtype != input) return true;
  return op.kernel != GemmKernel::kTiles && op.a.pitch_bytes != op.k * SizeOf(input);
}

// Returns true if the matmul sums neither at the result's place nor on chip.
bool SumsInScratch(const GemmOp& op) { return !op.direct && !(op.accumulate && !op.has_acc); }

const Matmul& MatmulOf(const GemmOp& op, const Piece& piece) {
  return piece.row + piece.rows == op.rows ? *op.last : *op.full;
}

}  // namespace

ScratchNeed NeedOf(const ProgramStep& step) {
  ScratchNeed need;
  const auto* op = std::get_if<GemmOp>(&step.op);
  if (op == nullptr) return need;
  // A worker packs with the scratch that it does not yet multiply with.
  if (!op->b_is_operand) need.a = op->full->widened_bytes(op->b.dtype);
  for (const Piece& piece : step.pieces) {
    ScratchNeed one;
    one.scratchpad = MatmulOf(*op, piece).scratchpad_bytes();
    if (CopiesA(*op)) one.a = piece.rows * op->k * SizeOf(InputOf(op->kernel));
    if (SumsInScratch(*op)) one.c = piece.rows * op->n * SizeOf(op->sum);
    need.Cover(one);
  }
  return need;
}

absl::Status MultiplyPiece(const GemmOp& op, const Piece& piece, const Operands& operands,
                           const PackedB& b, std::byte* chip, GemmWorker& worker) {
  const ZeroDenormals rule(op.a.dtype == DType::kBF16);
  Matrix a = MatrixAt(op.a, operands, piece.row);
  if (CopiesA(op)) {
    const DType input = InputOf(op.kernel);
    const int64_t pitch = op.k * SizeOf(input);
    const Matrix dense{worker.a.Get(piece.rows * pitch), pitch, input};
    CopyRows(a, dense, piece.rows, op.k);
    a = dense;
  }
  const int64_t sum_pitch = op.n * SizeOf(DType::kF32);
  std::byte* const rows = chip == nullptr ? nullptr : chip + piece.row * sum_pitch;
  const Matrix on_chip{rows, sum_pitch, DType::kF32};
  // The places of the sum so far, of the result, and of the matmul's sum.
  const Matrix acc = op.has_acc ? MatrixAt(op.acc, operands, piece.row) : on_chip;
  const Matrix result = op.finish ? MatrixAt(op.out, operands, piece.row) : acc;
  Matrix sum = result;
  if (SumsInScratch(op)) {
    const int64_t pitch = op.n * SizeOf(op.sum);
    sum = {worker.c.Get(piece.rows * pitch), pitch, op.sum};
  } else if (!op.direct) {
    sum = on_chip;
  }
  if (!op.direct && op.accumulate && op.has_acc) CopyRows(acc, sum, piece.rows, op.n);
  AGMM_RETURN_IF_ERROR(MatmulOf(op, piece).Run(a, b, sum, worker));
  if (sum.data != result.data) CopyRows(sum, result, piece.rows, op.n);
  return absl::OkStatus();
}

void ReducePiece(const ReduceOp& op, const Piece& piece, const Operands& operands,
                 bool zero_denormals) {
  const ZeroDenormals rule(zero_denormals);
  std::array<ConstMatrix, kMostTerms + 1> addends;
  size_t count = 0;
  if (op.accumulate) addends[count++] = MatrixAt(op.acc, operands, piece.row);
  for (const HeapPlace& from : op.from) addends[count++] = MatrixAt(from, operands, piece.row);
  SumRows({addends.data(), count}, MatrixAt(op.finish ? op.out : op.acc, operands, piece.row),
          piece.rows, op.cols);
}

}  // namespace agmm
