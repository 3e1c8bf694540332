// The arithmetic of a rank's tasks, and the scratch it takes.
#include "kernels/base/status.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/rank_run.h"

namespace agmm {
namespace {

// A has to be copied before it can be multiplied.
bool CopiesA(const MultiplyOp& op) {
  if (op.a.dtype != op.compute) return true;
  return !MultipliesAnyPitch(op.compute) && op.a.pitch_bytes != op.k * SizeOf(op.compute);
}

// The matmul adds up neither where the result belongs nor on chip.
bool SumsInScratch(const MultiplyOp& op) { return !op.direct && !(op.accumulate && !op.has_acc); }

}  // namespace

ScratchNeed RankRun::Need() const {
  ScratchNeed need;
  for (const ProgramStep& step : program_.steps) {
    const MultiplyOp* op = std::get_if<MultiplyOp>(&step.op);
    if (op == nullptr) continue;
    for (const Piece& piece : step.pieces) {
      const bool last = piece.row + piece.rows == op->rows;
      ScratchNeed one = (last ? op->last : op->full)->Need();
      if (CopiesA(*op)) one.a = piece.rows * op->k * SizeOf(op->compute);
      if (SumsInScratch(*op)) one.c = piece.rows * op->n * SizeOf(op->sum);
      need.Cover(one);
    }
  }
  return need;
}

// What is written for the first time lies in large pages.
void RankRun::Back(const Memory& result, const Piece& piece) const {
  Heap* const heap = peers_.heaps[peers_.self];
  if (result.heap != heap->host().data()) return;
  const bool workspace = result.buffer == kWorkspace;
  const int64_t begin = workspace ? operands_.workspace_offset : operands_.offsets[result.buffer];
  const int64_t bytes =
      workspace ? program_.workspace_bytes : program_.operand_bytes[result.buffer];
  const int64_t at = begin + result.offset_bytes + piece.row * result.pitch_bytes;
  heap->Back({at, at + piece.rows * result.pitch_bytes}, {begin, begin + bytes});
}

absl::Status RankRun::MultiplyPiece(const MultiplyOp& op, const Piece& piece, Lane& lane,
                                    GemmWorker& worker) const {
  const bool last = piece.row + piece.rows == op.rows;
  const Matmul& matmul = last ? *op.last : *op.full;
  const int64_t a_pitch = op.k * SizeOf(op.compute);
  Matrix a = op.a.Rows(operands_, piece.row);
  if (CopiesA(op)) {
    const Matrix dense{worker.a.Get(piece.rows * a_pitch), a_pitch, op.compute};
    CopyRows(a, dense, piece.rows, op.k);
    a = dense;
  }
  const int64_t sum_pitch = op.n * SizeOf(DType::kF32);
  const Matrix chip{lane.chip.Get(0) + piece.row * sum_pitch, sum_pitch, DType::kF32};
  // Where the sum so far lies, where the result belongs, and where the matmul adds up.
  const Matrix acc = op.has_acc ? op.acc.Rows(operands_, piece.row) : chip;
  if (op.finish) Back(op.out, piece);
  const Matrix result = op.finish ? op.out.Rows(operands_, piece.row) : acc;
  Matrix sum = result;
  if (!op.direct) {
    const int64_t scratch_pitch = op.n * SizeOf(op.sum);
    sum = SumsInScratch(op)
              ? Matrix{worker.c.Get(piece.rows * scratch_pitch), scratch_pitch, op.sum}
              : chip;
    if (op.accumulate && op.has_acc) CopyRows(acc, sum, piece.rows, op.n);
  }
  AGMM_RETURN_IF_ERROR(matmul.Run(a, *lane.packed, sum, worker));
  if (sum.data != result.data) CopyRows(sum, result, piece.rows, op.n);
  return absl::OkStatus();
}

void RankRun::ReducePiece(const ReduceOp& op, const Piece& piece) const {
  const Matrix into = op.into.Rows(operands_, piece.row);
  AddRows(op.from.Rows(operands_, piece.row), into, piece.rows, op.cols);
  if (!op.finish) return;
  const Matrix out = op.out.Rows(operands_, piece.row);
  if (out.data != into.data) CopyRows(into, out, piece.rows, op.cols);
}

}  // namespace agmm
