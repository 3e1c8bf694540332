#include "kernels/cpu/program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/malloc_bytes.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

// A copy is shared between workers in pieces of about this size.
constexpr int64_t kCopyPieceBytes = 1 << 20;
// Size of a single worker's pieces of a multiply. It drives the transport between pieces
// (progress_engine.h), so messages wait for this long: about half a millisecond with AMX. Pieces
// have at least kMinRows, because B passes through the caches once for each piece.
constexpr double kPieceFlops = 5e8;
constexpr int64_t kMinRows = 128;
// The rows of a multiply that one worker takes at a time. With B packed, pieces of 64 to 512 rows
// run at nearly the same rate, larger ones slightly faster (NOTES.md); with 128, all workers stay
// busy until the end of a chunk.
int64_t PieceRows(const MultiplyOp& op, int threads) {
  int64_t most = kMinRows;
  if (threads == 1 && 4.0 * static_cast<double>(most) * op.n * op.k <= kPieceFlops) most *= 2;
  return std::clamp<int64_t>(RoundUp(CeilDiv(op.rows, threads), 16), 16, most);
}

class Cutting {
 public:
  Cutting(const RankPlan& plan, int threads, GemmLibrary& library)
      : plan_(plan), threads_(threads), library_(library) {}

  absl::StatusOr<Program> Run() {
    AGMM_ASSIGN_OR_RETURN(LoweredRank lowered, LowerRank(plan_));
    AGMM_RETURN_IF_ERROR(CheckHeaps());
    program_.slots = lowered.slots;
    program_.zero_denormals =
        plan_.problem.tensors[plan_.problem.Inputs().front()].dtype == DType::kBF16;
    program_.lanes = std::move(lowered.lanes);
    program_.chip_bytes.resize(program_.lanes.size(), 0);
    program_.packed_bytes.resize(program_.lanes.size(), 0);
    program_.steps.reserve(lowered.steps.size());
    for (size_t i = 0; i < lowered.steps.size(); ++i) {
      ProgramStep& step = program_.steps.emplace_back();
      static_cast<StepEdges&>(step) = std::move(lowered.steps[i]);
      absl::Status status =
          std::visit([&](auto& op) { return Cut(std::move(op), &step); }, lowered.steps[i].op);
      if (!status.ok()) return Annotate(status, plan_.MeshStepName(static_cast<int>(i)));
    }
    return std::move(program_);
  }

 private:
  absl::Status CheckHeaps() const {
    for (size_t rank = 0; rank < plan_.peers.heaps.size(); ++rank) {
      Heap* const heap = plan_.peers.heaps[rank];
      if (heap != nullptr && heap->host().empty())
        return absl::InvalidArgumentError(absl::StrFormat(
            "the memory of rank %d is not the host's, and rank %d is a CPU; take ranks of one kind "
            "of device",
            rank, plan_.peers.self));
    }
    return absl::OkStatus();
  }

  absl::Status Cut(CopyOp op, ProgramStep* step) {
    const int64_t row_bytes = op.cols * SizeOf(op.from.dtype);
    for (size_t i = 0; i < op.to.size(); ++i) {
      if (op.to[i].heap == nullptr) continue;
      CutRows(static_cast<int>(i), op.rows, std::max<int64_t>(1, kCopyPieceBytes / row_bytes),
              step);
    }
    step->op = std::move(op);
    return absl::OkStatus();
  }

  absl::Status Cut(const MultiplyOp& multiply, ProgramStep* step) {
    GemmOp op{multiply};
    if (!op.has_acc && (op.accumulate || !op.finish)) {
      int64_t& chip = program_.chip_bytes[step->lane];
      chip = std::max(chip, op.rows * op.n * SizeOf(DType::kF32));
    }
    op.kernel = KernelFor(op.a.dtype);
    CutRows(0, op.rows, PieceRows(op, threads_), step);
    AGMM_RETURN_IF_ERROR(ChooseMatmuls(step->pieces, &op));
    if (!op.b_is_operand) {
      int64_t& packed = program_.packed_bytes[step->lane];
      packed = std::max(packed, op.full->packed_bytes());
    }
    step->op = std::move(op);
    return absl::OkStatus();
  }

  absl::Status Cut(ReduceOp op, ProgramStep* step) {
    const int64_t piece_rows = kCopyPieceBytes / (op.cols * SizeOf(DType::kF32));
    CutRows(0, op.rows, std::max<int64_t>(1, piece_rows), step);
    step->op = std::move(op);
    return absl::OkStatus();
  }

  static absl::Status Cut(const Join& join, ProgramStep* step) {
    step->op = join;
    return absl::OkStatus();
  }

  // Chooses the place of the sum so that a matmul can add to it: on chip, in place, or in scratch
  // with a conversion afterwards.
  absl::Status ChooseMatmuls(const std::vector<Piece>& pieces, GemmOp* op) {
    const HeapPlace& result = op->finish ? op->out : op->acc;
    const bool dense =
        op->kernel == GemmKernel::kTiles || result.pitch_bytes == op->n * SizeOf(result.dtype);
    const bool native = result.dtype == DType::kF32 || result.dtype == InputOf(op->kernel);
    if (op->finish) {
      op->direct = dense && native && !op->accumulate;
    } else {
      op->direct = !op->has_acc || dense;
    }
    Matmul::Key key{pieces.front().rows, op->n, op->k, op->kernel, DType::kF32, op->accumulate};
    // A result that differs from the matmul's output only in its pitch is made in its dtype and
    // copied.
    if (op->finish && !op->accumulate && native) op->sum = op->out.dtype;
    key.out = op->sum;
    AGMM_ASSIGN_OR_RETURN(op->full, library_.Get(key));
    key.m = pieces.back().rows;
    AGMM_ASSIGN_OR_RETURN(op->last, library_.Get(key));
    return absl::OkStatus();
  }

  static void CutRows(int target, int64_t rows, int64_t piece_rows, ProgramStep* step) {
    step->pieces.reserve(step->pieces.size() + CeilDiv(rows, piece_rows));
    for (int64_t row = 0; row < rows; row += piece_rows)
      step->pieces.push_back({target, row, std::min(piece_rows, rows - row)});
  }

  const RankPlan& plan_;
  const int threads_;
  GemmLibrary& library_;
  Program program_;
};

}  // namespace

int64_t SizeBytes(const Program& program) {
  int64_t bytes = 0;
  const auto add = [&](const auto& vector) { bytes += MallocBytesOf(vector); };
  add(program.steps);
  for (const ProgramStep& step : program.steps) {
    add(step.waits);
    add(step.signals);
    add(step.pieces);
    if (const auto* copy = std::get_if<CopyOp>(&step.op)) {
      add(copy->to);
      add(copy->sends);
      bytes += MallocBytes(copy->push.capacity() / 8);
    }
    if (const auto* reduce = std::get_if<ReduceOp>(&step.op)) add(reduce->from);
  }
  for (const std::vector<int>& lane : program.lanes) add(lane);
  return bytes;
}

absl::StatusOr<Program> MakeProgram(const RankPlan& plan, int threads, GemmLibrary& library) {
  return Cutting(plan, threads, library).Run();
}

}  // namespace agmm
