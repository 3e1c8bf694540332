#include "kernels/cpu/program.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/cpu/kernel_choice.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/verify.h"

namespace agmm {
namespace {

// A copy is shared between workers in pieces of about this size.
constexpr int64_t kCopyPieceBytes = 1 << 20;
// Size of a single worker's pieces of a multiply. It drives the transport between pieces
// (progress_engine.h), so messages wait for this long: about half a millisecond with AMX. Pieces
// have at least kMinRows, because B passes through the caches once for each piece.
constexpr double kPieceFlops = 5e8;
constexpr int64_t kMinRows = 128;
// Bytes that a rank pushes to a node in an epoch, so that they need not wait until the receiver,
// which may be busy with a multiply, asks for them: about the size of a socket's buffers, and for
// all of the plan's ranks on its node a quarter of what the receiver parks for a peer
// (daemon/transport/plan_messages.h), because two plans may run at a time.
constexpr int64_t kPushBytes = 1 << 20, kPushBytesOfNode = 16 << 20;

// The rows of a multiply that one worker takes at a time. With B packed, pieces of 64 to 512 rows
// run at nearly the same rate, larger ones slightly faster (NOTES.md); with 128, all workers stay
// busy until the end of a chunk.
int64_t PieceRows(const MultiplyOp& op, int threads) {
  int64_t most = kMinRows;
  if (threads == 1 && 4.0 * static_cast<double>(most) * op.n * op.k <= kPieceFlops) most *= 2;
  return std::clamp<int64_t>(RoundUp(CeilDiv(op.rows, threads), 16), 16, most);
}

// By operand: whether a step writes it. Then its version does not identify its contents.
std::vector<bool> WrittenOperands(const Problem& problem, const Schedule& schedule) {
  const size_t operands = problem.tensors.size();
  std::vector<bool> written(operands, false);
  for (Rank rank = 0; rank < static_cast<Rank>(schedule.ranks.size()); ++rank) {
    for (const Step& step : schedule.ranks[rank]) {
      for (const Access& access : AccessesOf(step, rank, 0)) {
        const Buffer buffer = access.place.buffer;
        if (access.write && buffer >= 0 && buffer < static_cast<Buffer>(operands))
          written[buffer] = true;
      }
    }
  }
  return written;
}

class Lowering {
 public:
  Lowering(const RankPlan& plan, int threads, GemmLibrary& library)
      : plan_(plan), peers_(plan.peers), threads_(threads), library_(library) {}

  absl::StatusOr<Program> Run() {
    AGMM_RETURN_IF_ERROR(plan_.CheckPeers());
    AGMM_RETURN_IF_ERROR(
        VerifySteps(plan_.problem, Topology{peers_.nodes}, *plan_.schedule, peers_.self));
    const std::vector<Step>& steps = plan_.steps();
    written_ = WrittenOperands(plan_.problem, *plan_.schedule);
    ranks_of_node_ =
        std::count(peers_.nodes.begin(), peers_.nodes.end(), peers_.nodes[peers_.self]);
    program_.slots = SlotCounts(*plan_.schedule)[peers_.self];
    program_.lanes.resize(LaneCount(steps));
    program_.chip_bytes.resize(program_.lanes.size(), 0);
    program_.packed_bytes.resize(program_.lanes.size(), 0);
    for (size_t i = 0; i < steps.size(); ++i) {
      absl::Status status = LowerStep(steps[i]);
      if (!status.ok())
        return Annotate(status,
                        absl::StrFormat("rank %d lane %d step %d", peers_.self, steps[i].lane, i));
      program_.lanes[steps[i].lane].push_back(static_cast<int>(i));
    }
    for (const Step& step : steps) GateCarrier(step);
    return std::move(program_);
  }

 private:
  absl::Status LowerStep(const Step& step) {
    ProgramStep lowered;
    lowered.lane = step.lane;
    lowered.waits = step.waits;
    for (const Slot& slot : step.signals) {
      const bool local = plan_.IsLocal(slot.rank);
      if (!local && peers_.transport == nullptr)
        return absl::InvalidArgumentError(absl::StrFormat(
            "raises a slot of rank %d on another node, and the plan has no transport", slot.rank));
      lowered.signals.push_back(
          {slot.index, local ? peers_.executors[slot.rank] : nullptr, peers_.nodes[slot.rank]});
    }
    AGMM_RETURN_IF_ERROR(
        std::visit([&](const auto& op) { return LowerOp(op, &lowered); }, step.op));
    program_.steps.push_back(std::move(lowered));
    return absl::OkStatus();
  }

  absl::Status LowerOp(const Transfer& transfer, ProgramStep* lowered) {
    CopyOp op;
    if (!transfer.to.empty()) {
      op.rows = transfer.block.rows.size();
      op.cols = transfer.block.cols.size();
      op.from = plan_.Locate(transfer.from);
      op.padded = OwnsGaps(plan_.problem, transfer.block, transfer.from);
      op.push.resize(transfer.to.size());
    }
    const int64_t row_bytes = RowBytes(transfer.block, transfer.from);
    for (size_t i = 0; i < transfer.to.size(); ++i) {
      const Place& to = transfer.to[i];
      op.to.push_back(plan_.Locate(to));
      if (plan_.IsLocal(to.rank)) {
        Cut(static_cast<int>(i), op.rows, std::max<int64_t>(1, kCopyPieceBytes / row_bytes),
            lowered);
      } else {
        op.sends.push_back(static_cast<int>(i));
        op.push[i] = Push(peers_.nodes[to.rank], op.rows * row_bytes);
      }
    }
    lowered->op = std::move(op);
    return absl::OkStatus();
  }

  absl::Status LowerOp(const Multiply& multiply, ProgramStep* lowered) {
    MultiplyOp op;
    op.rows = multiply.c.rows.size();
    op.n = multiply.c.cols.size();
    op.k = multiply.a.cols.size();
    op.accumulate = multiply.accumulate;
    op.finish = multiply.finish;
    op.has_acc = multiply.acc.has_value();
    op.a = plan_.Locate(multiply.a_place);
    op.b = plan_.Locate(multiply.b_place);
    if (op.has_acc) op.acc = plan_.Locate(*multiply.acc);
    if (op.finish) op.out = plan_.Locate(multiply.out);
    if (!op.has_acc && (op.accumulate || !op.finish)) {
      int64_t& chip = program_.chip_bytes[lowered->lane];
      chip = std::max(chip, op.rows * op.n * SizeOf(DType::kF32));
    }
    op.b_is_operand = multiply.b_place.buffer != kWorkspace && !written_[multiply.b_place.buffer];
    op.kernel = KernelFor(multiply.a_place.dtype, plan_.problem.m());
    Cut(0, op.rows, PieceRows(op, threads_), lowered);
    AGMM_RETURN_IF_ERROR(ChooseMatmuls(lowered->pieces, &op));
    if (!op.b_is_operand) {
      int64_t& packed = program_.packed_bytes[lowered->lane];
      packed = std::max(packed, op.full->packed_bytes());
    }
    lowered->op = std::move(op);
    return absl::OkStatus();
  }

  // Chooses where the sum is made so that a matmul can add to it: on chip, in place, or in scratch
  // and converted afterwards.
  absl::Status ChooseMatmuls(const std::vector<Piece>& pieces, MultiplyOp* op) {
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
    // A result that only has another pitch than the matmul writes is made in its dtype and copied.
    if (op->finish && !op->accumulate && native) op->sum = op->out.dtype;
    key.out = op->sum;
    AGMM_ASSIGN_OR_RETURN(op->full, library_.Get(key));
    key.m = pieces.back().rows;
    AGMM_ASSIGN_OR_RETURN(op->last, library_.Get(key));
    return absl::OkStatus();
  }

  absl::Status LowerOp(const Reduce& reduce, ProgramStep* lowered) {
    ReduceOp op;
    op.cols = reduce.c.cols.size();
    op.finish = reduce.finish;
    op.from = plan_.Locate(reduce.from);
    op.into = plan_.Locate(reduce.into);
    if (op.finish) op.out = plan_.Locate(reduce.out);
    const int64_t piece_rows = kCopyPieceBytes / RowBytes(reduce.c, reduce.into);
    Cut(0, reduce.c.rows.size(), std::max<int64_t>(1, piece_rows), lowered);
    lowered->op = op;
    return absl::OkStatus();
  }

  // Whether `bytes` more may be pushed to `node`; then they count as pushed.
  bool Push(int node, int64_t bytes) {
    int64_t& pushed = pushed_[node];
    if (pushed + bytes > std::min(kPushBytes, kPushBytesOfNode / ranks_of_node_)) return false;
    pushed += bytes;
    return true;
  }

  // Makes the waits of a carried transfer gate its multiply too.
  void GateCarrier(const Step& step) {
    const auto* transfer = std::get_if<Transfer>(&step.op);
    if (transfer == nullptr || transfer->carrier == -1) return;
    std::vector<Wait>& gates = program_.steps[transfer->carrier].waits;
    for (const Wait& wait : step.waits) {
      if (std::find(gates.begin(), gates.end(), wait) == gates.end()) gates.push_back(wait);
    }
  }

  static void Cut(int target, int64_t rows, int64_t piece_rows, ProgramStep* lowered) {
    for (int64_t row = 0; row < rows; row += piece_rows)
      lowered->pieces.push_back({target, row, std::min(piece_rows, rows - row)});
  }

  const RankPlan& plan_;
  const Peers& peers_;
  const int threads_;
  GemmLibrary& library_;
  std::vector<bool> written_;  // by operand
  int64_t ranks_of_node_ = 1;
  std::map<int, int64_t> pushed_;  // bytes, by node
  Program program_;
};

}  // namespace

int64_t SizeBytes(const Program& program) {
  int64_t bytes = 0;
  const auto add = [&](const auto& vector) { bytes += vector.capacity() * sizeof(vector[0]); };
  add(program.steps);
  for (const ProgramStep& step : program.steps) {
    add(step.waits);
    add(step.signals);
    add(step.pieces);
    if (const auto* copy = std::get_if<CopyOp>(&step.op)) {
      add(copy->to);
      add(copy->sends);
    }
  }
  for (const std::vector<int>& lane : program.lanes) add(lane);
  return bytes;
}

absl::StatusOr<Program> Lower(const RankPlan& plan, int threads, GemmLibrary& library) {
  return Lowering(plan, threads, library).Run();
}

}  // namespace agmm
