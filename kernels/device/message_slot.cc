#include "kernels/device/message_slot.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/order.h"

namespace agmm {
namespace {

absl::StatusOr<Rows> Locate(const ArrivalContext& context, const Block& block, const Place& place) {
  const int operands = static_cast<int>(context.problem.tensors.size());
  if (place.buffer < kWorkspace || place.buffer >= operands) {
    return absl::InvalidArgumentError(
        absl::StrFormat("it writes buffer %d; there are %d operands", place.buffer, operands));
  }
  const bool workspace = place.buffer == kWorkspace;
  Heap* heap = context.heaps[place.rank];
  const int64_t end = place.offset_bytes + SpanBytes(block, place);
  const int64_t room =
      workspace ? context.schedule.workspace_bytes
                : ShardBytes(context.problem.mesh, context.problem.tensors[place.buffer]);
  if (context.operands == nullptr && place.offset_bytes >= 0 && end <= room) {
    return absl::FailedPreconditionError(
        absl::StrFormat("it writes %s, whose address is unknown before the epoch is launched here",
                        workspace ? "the workspace" : context.problem.tensors[place.buffer].name));
  }
  const int64_t base = context.operands == nullptr ? 0
                       : workspace                 ? context.operands->workspace_offset
                                                   : context.operands->offsets[place.buffer];
  if (place.offset_bytes < 0 || end > room || base < 0 || base > heap->size_bytes() - end) {
    return absl::InvalidArgumentError(
        absl::StrFormat("it writes up to %d B of a buffer of %d B at %d in a heap of %d B", end,
                        room, base, heap->size_bytes()));
  }
  const HeapRows rows{base + place.offset_bytes, block.rows.size(), RowBytes(block, place),
                      place.pitch_bytes};
  return RowsAt(heap, rows, OwnsGaps(context.problem, block, place));
}

absl::Status CheckBytes(int64_t bytes, int64_t expected) {
  if (bytes == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("it carries %d B; the schedule says %d", bytes, expected));
}

absl::StatusOr<Arrival> Resolve(const ArrivalContext& context, int from_node,
                                const Message& message, int64_t bytes) {
  const Rank ranks = static_cast<Rank>(context.schedule.ranks.size());
  if (message.source < 0 || message.source >= ranks)
    return absl::InvalidArgumentError(absl::StrFormat("its source is not in [0, %d)", ranks));
  if (context.nodes[message.source] != from_node || from_node == context.node)
    return absl::InvalidArgumentError(
        absl::StrFormat("its source is on node %d, but it came from node %d to node %d",
                        context.nodes[message.source], from_node, context.node));
  if (message.epoch == 0) return absl::InvalidArgumentError("epochs count from 1");
  const Step* const found = FindStep(context.schedule, context.names, message.source, message.step);
  if (found == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its source has no such step that signals node %d", context.node));
  }
  const Step& step = *found;
  if (message.part < 0 || message.part >= static_cast<int>(step.signals.size()))
    return absl::InvalidArgumentError(
        absl::StrFormat("its part is not in [0, %d)", step.signals.size()));
  Arrival arrival;
  arrival.slot = step.signals[message.part];
  if (arrival.slot.rank < 0 || arrival.slot.rank >= ranks || arrival.slot.index < 0 ||
      context.nodes[arrival.slot.rank] != context.node ||
      context.heaps[arrival.slot.rank] == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("it raises slot %d:%d, which is not on node %d", arrival.slot.rank,
                        arrival.slot.index, context.node));
  }
  if (IsArrival(step, message.source, message.part)) {
    const Transfer& transfer = std::get<Transfer>(step.op);
    const Place& to = transfer.to[message.part];
    if (to.rank != arrival.slot.rank)
      return absl::InvalidArgumentError(
          absl::StrFormat("it writes at rank %d and signals rank %d", to.rank, arrival.slot.rank));
    AGMM_RETURN_IF_ERROR(
        CheckBytes(bytes, transfer.block.rows.size() * RowBytes(transfer.block, to)));
    AGMM_ASSIGN_OR_RETURN(arrival.to, Locate(context, transfer.block, to));
    return arrival;
  }
  AGMM_RETURN_IF_ERROR(CheckBytes(bytes, 0));
  return arrival;
}

}  // namespace

absl::StatusOr<Arrival> ResolveArrival(const ArrivalContext& context, int from_node,
                                       const Message& message, int64_t bytes) {
  absl::StatusOr<Arrival> arrival = Resolve(context, from_node, message, bytes);
  if (arrival.ok()) return arrival;
  return Annotate(arrival.status(),
                  absl::StrFormat("message of source %d step %d part %d epoch %d", message.source,
                                  message.step, message.part, message.epoch));
}

void Signal(const Arrival& arrival, uint64_t epoch, const std::vector<Executor*>& executors) {
  executors[arrival.slot.rank]->Signal(arrival.slot.index, epoch);
}

}  // namespace agmm
