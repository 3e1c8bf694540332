#include "kernels/cpu/program.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// A copy is shared between workers in pieces of about this size.
constexpr int64_t kCopyPieceBytes = 1 << 20;
// What a rank pushes to a node in an epoch before it waits to be asked: about what a socket takes,
// and for all of the plan's ranks on its node a quarter of what the receiver parks of a peer
// (daemon/transport/plan_messages.h), for two plans at a time.
constexpr int64_t kPushBytes = 1 << 20, kPushBytesOfNode = 16 << 20;

class Lowering {
 public:
  Lowering(const Problem& problem, const Schedule& schedule, const Peers& peers, int threads,
           GemmLibrary& library)
      : problem_(problem),
        schedule_(schedule),
        peers_(peers),
        threads_(threads),
        library_(library) {}

  absl::StatusOr<Program> Run() {
    AGMM_RETURN_IF_ERROR(CheckWorld());
    const std::vector<Step>& steps = schedule_.ranks[peers_.self];
    written_ = WrittenOperands();
    program_.slots = SlotCounts(schedule_)[peers_.self];
    program_.workspace_bytes = schedule_.workspace_bytes;
    program_.lanes.resize(LaneCount(steps));
    program_.chip_bytes.resize(program_.lanes.size(), 0);
    for (const Tensor& tensor : problem_.tensors)
      program_.operand_bytes.push_back(ShardBytes(problem_.mesh, tensor));
    for (size_t i = 0; i < steps.size(); ++i) {
      absl::Status status = LowerStep(steps[i]);
      if (!status.ok())
        return Annotate(status,
                        absl::StrFormat("rank %d lane %d step %d", peers_.self, steps[i].lane, i));
      program_.lanes[steps[i].lane].push_back(static_cast<int>(i));
    }
    for (size_t i = 0; i < steps.size(); ++i)
      AGMM_RETURN_IF_ERROR(GateCarrier(static_cast<int>(i)));
    return std::move(program_);
  }

 private:
  absl::Status CheckWorld() const {
    const size_t ranks = schedule_.ranks.size();
    if (problem_.mesh.ranks.size() != ranks || peers_.executors.size() != ranks ||
        peers_.heaps.size() != ranks || peers_.nodes.size() != ranks || peers_.self < 0 ||
        peers_.self >= static_cast<Rank>(ranks) || peers_.heaps[peers_.self] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the schedule has %d ranks; the mesh has %d, and %d executors, %d heaps "
                          "and %d nodes were "
                          "given for rank %d",
                          ranks, problem_.mesh.ranks.size(), peers_.executors.size(),
                          peers_.heaps.size(), peers_.nodes.size(), peers_.self));
    }
    for (Rank rank = 0; rank < static_cast<Rank>(ranks); ++rank) {
      const bool same_node = peers_.nodes[rank] == peers_.nodes[peers_.self];
      if (same_node && (peers_.executors[rank] == nullptr || peers_.heaps[rank] == nullptr)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "rank %d is on node %d with rank %d and has no %s", rank, peers_.nodes[rank],
            peers_.self, peers_.heaps[rank] == nullptr ? "heap" : "executor"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status LowerStep(const Step& step) {
    if (step.lane < 0) return absl::InvalidArgumentError("a lane is a number from 0");
    ProgramStep lowered;
    lowered.lane = step.lane;
    for (const Wait& wait : step.waits) {
      if (wait.slot.rank != peers_.self || wait.slot.index < 0 || wait.lag < 0) {
        return absl::InvalidArgumentError(
            absl::StrFormat("waits for slot %d:%d with lag %d; a rank waits for slots of its own, "
                            "of this epoch or an "
                            "earlier one",
                            wait.slot.rank, wait.slot.index, wait.lag));
      }
      lowered.waits.push_back(wait);
    }
    for (const Slot& slot : step.signals) {
      if (!IsRank(slot.rank) || slot.index < 0)
        return absl::InvalidArgumentError(
            absl::StrFormat("raises slot %d:%d, which no rank has", slot.rank, slot.index));
      if (!IsLocal(slot.rank) && peers_.transport == nullptr)
        return absl::InvalidArgumentError(absl::StrFormat(
            "raises a slot of rank %d on another node, and there is no transport", slot.rank));
      lowered.signals.push_back({slot.rank, slot.index,
                                 IsLocal(slot.rank) ? peers_.executors[slot.rank] : nullptr,
                                 peers_.nodes[slot.rank]});
    }
    if (const auto* transfer = std::get_if<Transfer>(&step.op)) {
      AGMM_RETURN_IF_ERROR(LowerTransfer(*transfer, &lowered));
    } else if (const auto* multiply = std::get_if<Multiply>(&step.op)) {
      AGMM_RETURN_IF_ERROR(LowerMultiply(*multiply, &lowered));
    } else {
      AGMM_RETURN_IF_ERROR(LowerReduce(std::get<Reduce>(step.op), &lowered));
    }
    program_.steps.push_back(std::move(lowered));
    return absl::OkStatus();
  }

  absl::Status LowerTransfer(const Transfer& transfer, ProgramStep* lowered) {
    CopyOp op;
    if (!transfer.to.empty()) {
      op.rows = transfer.block.rows.size();
      op.cols = transfer.block.cols.size();
      AGMM_ASSIGN_OR_RETURN(op.from, Locate(transfer.block, transfer.from, kHere));
    }
    const int64_t piece_rows = std::max<int64_t>(
        1, kCopyPieceBytes / std::max<int64_t>(1, RowBytes(transfer.block, transfer.from)));
    for (size_t i = 0; i < transfer.to.size(); ++i) {
      const Place& to = transfer.to[i];
      if (to.dtype != transfer.from.dtype)
        return absl::InvalidArgumentError(
            absl::StrFormat("copies %s to %s; a transfer does not convert",
                            Name(transfer.from.dtype), Name(to.dtype)));
      AGMM_ASSIGN_OR_RETURN(Memory memory, Locate(transfer.block, to, kAnywhere));
      op.to.push_back(memory);
      if (memory.heap != nullptr) {
        Cut(static_cast<int>(i), op.rows, piece_rows, lowered);
        continue;
      }
      if (i >= lowered->signals.size() || lowered->signals[i].rank != to.rank)
        return absl::InvalidArgumentError(absl::StrFormat(
            "sends to rank %d and raises no slot there; signals[%d] must", to.rank, i));
      op.sends.push_back(static_cast<int>(i));
      op.push.resize(transfer.to.size());
      op.push[i] = Pushes(peers_.nodes[to.rank], op.rows * RowBytes(transfer.block, transfer.from));
    }
    lowered->op = std::move(op);
    return absl::OkStatus();
  }

  // The first of what goes to a node does not wait until the receiver, who may be at a multiply,
  // asks for it.
  bool Pushes(int node, int64_t bytes) {
    const int64_t ranks =
        std::count(peers_.nodes.begin(), peers_.nodes.end(), peers_.nodes[peers_.self]);
    int64_t& pushed = pushed_[node];
    if (pushed + bytes > std::min(kPushBytes, kPushBytesOfNode / ranks)) return false;
    pushed += bytes;
    return true;
  }

  absl::Status LowerMultiply(const Multiply& multiply, ProgramStep* lowered) {
    MultiplyOp op;
    op.rows = multiply.c.rows.size();
    op.n = multiply.c.cols.size();
    op.k = multiply.a.cols.size();
    if (multiply.a.rows != multiply.c.rows || multiply.b.cols != multiply.c.cols ||
        multiply.a.cols != multiply.b.rows || multiply.c.empty() || op.k <= 0 ||
        multiply.a_place.dtype != multiply.b_place.dtype) {
      return absl::InvalidArgumentError(
          absl::StrFormat("multiplies %d x %d %s by %d x %d %s into %d x %d; the blocks must fit "
                          "and hold something",
                          multiply.a.rows.size(), multiply.a.cols.size(),
                          Name(multiply.a_place.dtype), multiply.b.rows.size(),
                          multiply.b.cols.size(), Name(multiply.b_place.dtype), op.rows, op.n));
    }
    op.accumulate = multiply.accumulate;
    op.finish = multiply.finish;
    op.has_acc = multiply.acc.has_value();
    AGMM_ASSIGN_OR_RETURN(op.a, Locate(multiply.a, multiply.a_place, kHere));
    AGMM_ASSIGN_OR_RETURN(op.b, Locate(multiply.b, multiply.b_place, kHere));
    if (op.has_acc) {
      if (multiply.acc->dtype != DType::kF32)
        return absl::InvalidArgumentError("keeps partial sums in f32 only");
      AGMM_ASSIGN_OR_RETURN(op.acc, Locate(multiply.c, *multiply.acc, kHere));
    } else if (op.accumulate || !op.finish) {
      if (op.accumulate) AGMM_RETURN_IF_ERROR(CheckChain(multiply, lowered->lane));
      int64_t& chip = program_.chip_bytes[lowered->lane];
      chip = std::max(chip, op.rows * op.n * SizeOf(DType::kF32));
    }
    if (op.finish) {
      AGMM_ASSIGN_OR_RETURN(op.out, Locate(multiply.c, multiply.out, kHere));
    }
    op.b_is_operand = multiply.b_place.buffer != kWorkspace && !written_[multiply.b_place.buffer];
    op.compute = ComputeDType(multiply.a_place.dtype);
    const GemmConfig config =
        ChooseGemmConfig(op.rows, op.n, op.k, multiply.a_place.dtype, threads_);
    Cut(0, op.rows, config.piece_rows, lowered);
    AGMM_RETURN_IF_ERROR(ChooseMatmuls(lowered->pieces, &op));
    lowered->op = std::move(op);
    return absl::OkStatus();
  }

  // The sum starts where a matmul can go on: on chip, in place, or in scratch and converted
  // afterwards.
  absl::Status ChooseMatmuls(const std::vector<Piece>& pieces, MultiplyOp* op) {
    const Memory& result = op->finish ? op->out : op->acc;
    const bool dense =
        MultipliesAnyPitch(op->compute) || result.pitch_bytes == op->n * SizeOf(result.dtype);
    const bool native = result.dtype == DType::kF32 ||
                        (result.dtype == DType::kBF16 && op->compute == DType::kBF16);
    if (op->finish) {
      op->direct = dense && native && !op->accumulate;
    } else {
      op->direct = !op->has_acc || dense;
    }
    Matmul::Key key{pieces.front().rows, op->n, op->k, op->compute, DType::kF32, op->accumulate};
    // What only lies elsewhere than the matmul can write is written as it is to be, and copied.
    if (op->finish && !op->accumulate && native) op->sum = op->out.dtype;
    key.out = op->sum;
    AGMM_ASSIGN_OR_RETURN(op->full, library_.Get(key));
    key.m = pieces.back().rows;
    AGMM_ASSIGN_OR_RETURN(op->last, library_.Get(key));
    return absl::OkStatus();
  }

  absl::Status LowerReduce(const Reduce& reduce, ProgramStep* lowered) {
    ReduceOp op;
    op.cols = reduce.c.cols.size();
    op.finish = reduce.finish;
    if (reduce.c.empty() || reduce.into.dtype != DType::kF32)
      return absl::InvalidArgumentError("reduces nothing, or into a place that is not f32");
    AGMM_ASSIGN_OR_RETURN(op.from, Locate(reduce.c, reduce.from, kHere));
    AGMM_ASSIGN_OR_RETURN(op.into, Locate(reduce.c, reduce.into, kHere));
    if (op.finish) {
      AGMM_ASSIGN_OR_RETURN(op.out, Locate(reduce.c, reduce.out, kHere));
    }
    const int64_t rows = reduce.c.rows.size();
    const int64_t piece_rows =
        kCopyPieceBytes / std::max<int64_t>(1, RowBytes(reduce.c, reduce.into));
    Cut(0, rows, std::max<int64_t>(1, piece_rows), lowered);
    lowered->op = op;
    return absl::OkStatus();
  }

  // The multiply just before in the lane must have left this sum on chip.
  absl::Status CheckChain(const Multiply& multiply, int lane) const {
    const std::vector<int>& steps = program_.lanes[lane];
    if (!steps.empty()) {
      const Step& before = schedule_.ranks[peers_.self][steps.back()];
      const auto* previous = std::get_if<Multiply>(&before.op);
      if (previous != nullptr && previous->c == multiply.c && !previous->finish && !previous->acc)
        return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "goes on with a sum on chip that the step before it in its lane did not leave there");
  }

  // What a carried transfer waits for gates its multiply too.
  absl::Status GateCarrier(int index) {
    const auto* transfer = std::get_if<Transfer>(&schedule_.ranks[peers_.self][index].op);
    if (transfer == nullptr || transfer->carrier == -1) return absl::OkStatus();
    const int carrier = transfer->carrier;
    if (carrier < 0 || carrier >= static_cast<int>(program_.steps.size()) ||
        !std::holds_alternative<MultiplyOp>(program_.steps[carrier].op)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rank %d step %d: is carried by step %d, which is not a multiply",
                          peers_.self, index, carrier));
    }
    std::vector<Wait>& gates = program_.steps[carrier].waits;
    for (const Wait& wait : program_.steps[index].waits) {
      if (std::find(gates.begin(), gates.end(), wait) == gates.end()) gates.push_back(wait);
    }
    return absl::OkStatus();
  }

  bool IsRank(Rank rank) const {
    return rank >= 0 && rank < static_cast<Rank>(peers_.nodes.size());
  }
  bool IsLocal(Rank rank) const { return peers_.nodes[rank] == peers_.nodes[peers_.self]; }

  // Only a transfer writes to other nodes.
  enum Where { kHere, kAnywhere };
  absl::StatusOr<Memory> Locate(const Block& block, const Place& place, Where where) const {
    const int operands = static_cast<int>(problem_.tensors.size());
    if (!IsRank(place.rank) || place.buffer < kWorkspace || place.buffer >= operands ||
        place.offset_bytes < 0 || block.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "names buffer %d at rank %d + %d B for %d x %d elements, which is no place", place.buffer,
          place.rank, place.offset_bytes, block.rows.size(), block.cols.size()));
    }
    if (!IsLocal(place.rank)) {
      if (where == kHere || peers_.transport == nullptr)
        return absl::InvalidArgumentError(absl::StrFormat(
            "uses memory of rank %d, which is on another node%s", place.rank,
            where == kHere ? "; only a transfer's `to` may" : ", and there is no transport"));
      return Memory{nullptr, place.buffer, place.offset_bytes, place.pitch_bytes, place.dtype};
    }
    Heap* heap = peers_.heaps[place.rank];
    const int64_t end = place.offset_bytes + SpanBytes(block, place);
    const int64_t room = place.buffer == kWorkspace
                             ? schedule_.workspace_bytes
                             : ShardBytes(problem_.mesh, problem_.tensors[place.buffer]);
    if (end > room || end > heap->size_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a block ends %d B into a buffer of %d B in a heap of %d B", end, room,
                          heap->size_bytes()));
    }
    return Memory{heap->host().data(), place.buffer, place.offset_bytes, place.pitch_bytes,
                  place.dtype};
  }

  // Which operands some rank's steps write: the version of one says nothing about what lies there.
  std::vector<bool> WrittenOperands() const {
    std::vector<bool> written(problem_.tensors.size(), false);
    auto write = [&](const Place& place) {
      if (place.buffer >= 0 && place.buffer < static_cast<int>(written.size()))
        written[place.buffer] = true;
    };
    for (const auto& steps : schedule_.ranks) {
      for (const Step& step : steps) {
        if (const auto* transfer = std::get_if<Transfer>(&step.op)) {
          for (const Place& to : transfer->to) write(to);
        } else if (const auto* multiply = std::get_if<Multiply>(&step.op)) {
          if (multiply->finish) write(multiply->out);
          if (multiply->acc) write(*multiply->acc);
        } else {
          const auto& reduce = std::get<Reduce>(step.op);
          write(reduce.into);
          if (reduce.finish) write(reduce.out);
        }
      }
    }
    return written;
  }

  static void Cut(int target, int64_t rows, int64_t piece_rows, ProgramStep* lowered) {
    for (int64_t row = 0; row < rows; row += piece_rows)
      lowered->pieces.push_back({target, row, std::min(piece_rows, rows - row)});
  }

  const Problem& problem_;
  const Schedule& schedule_;
  const Peers& peers_;
  const int threads_;
  GemmLibrary& library_;
  std::vector<bool> written_;      // by operand
  std::map<int, int64_t> pushed_;  // bytes by node
  Program program_;
};

}  // namespace

absl::StatusOr<Program> Lower(const Problem& problem, const Schedule& schedule, const Peers& peers,
                              int threads, GemmLibrary& library) {
  return Lowering(problem, schedule, peers, threads, library).Run();
}

}  // namespace agmm
