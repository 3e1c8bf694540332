#include "kernels/schedule/verify.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/order.h"
#include "kernels/schedule/verify_internal.h"

namespace agmm {
namespace verify {

std::vector<Access> AccessesOf(const Step& step, Rank rank, int index) {
  std::vector<Access> out;
  auto add = [&](const Block& block, const Place& place, bool write, int to = -1,
                 bool is_from = false) {
    out.push_back({rank, index, to, write, is_from, block, place});
  };
  if (const auto* transfer = std::get_if<Transfer>(&step.op)) {
    if (transfer->to.empty()) return out;
    add(transfer->block, transfer->from, false, -1, true);
    for (int i = 0; i < static_cast<int>(transfer->to.size()); ++i) {
      add(transfer->block, transfer->to[i], true, IsArrival(step, rank, i) ? i : -1);
    }
  } else if (const auto* multiply = std::get_if<Multiply>(&step.op)) {
    add(multiply->a, multiply->a_place, false);
    add(multiply->b, multiply->b_place, false);
    if (multiply->acc) add(multiply->c, *multiply->acc, !multiply->finish);
    if (multiply->finish) add(multiply->c, multiply->out, true);
  } else {
    const Reduce& reduce = std::get<Reduce>(step.op);
    add(reduce.c, reduce.from, false);
    add(reduce.c, reduce.into, true);
    if (reduce.finish) add(reduce.c, reduce.out, true);
  }
  return out;
}

std::string BlockName(const Problem& problem, const Block& block) {
  return absl::StrFormat("%s[%d:%d, %d:%d]", problem.tensors[block.operand].name, block.rows.begin,
                         block.rows.end, block.cols.begin, block.cols.end);
}

std::string BufferName(const Problem& problem, Rank rank, Buffer buffer) {
  return absl::StrFormat("rank %d's %s", rank,
                         buffer == kWorkspace ? "workspace" : problem.tensors[buffer].name);
}

std::string PlacedName(const Problem& problem, const Block& block, const Place& place) {
  return absl::StrFormat("%s at byte %d of %s", BlockName(problem, block), place.offset_bytes,
                         BufferName(problem, place.rank, place.buffer));
}

absl::Status CheckPasses(const Problem& problem, const Schedule& schedule, const Order& order) {
  for (const auto& [rank, step] : order.sequence()) {
    const Step& s = schedule.ranks[rank][step];
    const auto* multiply = std::get_if<Multiply>(&s.op);
    if (multiply == nullptr || multiply->acc || !multiply->accumulate) continue;
    int first = step;
    do {
      first = order.LanePredecessor(rank, first);
      const Multiply& before = std::get<Multiply>(schedule.ranks[rank][first].op);
      for (const auto& [block, place] :
           {std::pair{&before.a, &before.a_place}, std::pair{&before.b, &before.b_place}}) {
        if (!multiply->finish || multiply->out.rank != place->rank ||
            multiply->out.buffer != place->buffer ||
            !Overlap(FootprintOf(multiply->c, multiply->out), FootprintOf(*block, *place))) {
          continue;
        }
        return absl::FailedPreconditionError(absl::StrFormat(
            "%s writes %s over %s, which step %d of the same tile pass reads",
            StepName(schedule, rank, step), PlacedName(problem, multiply->c, multiply->out),
            PlacedName(problem, *block, *place), first));
      }
    } while (std::get<Multiply>(schedule.ranks[rank][first].op).accumulate);
    for (const Wait& wait : s.waits) {
      if (wait.lag != 0) continue;
      const Event start = {rank, first, -1, 0}, event = order.Source(wait.slot, 0);
      if (!(event == start) && !order.Before(start, event)) continue;
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s waits for slot %d:%d, which is signalled only after step %d, with which it shares a "
          "tile pass; keep the sum in the workspace or drop the wait",
          StepName(schedule, rank, step), wait.slot.rank, wait.slot.index, first));
    }
  }
  return absl::OkStatus();
}

}  // namespace verify

absl::Status Verify(const Problem& problem, const Topology& topology, const Schedule& schedule) {
  AGMM_RETURN_IF_ERROR(Validate(problem));
  AGMM_RETURN_IF_ERROR(verify::CheckStructure(problem, topology, schedule));
  AGMM_ASSIGN_OR_RETURN(const Order order, Order::Build(schedule));
  AGMM_RETURN_IF_ERROR(verify::CheckPasses(problem, schedule, order));
  AGMM_RETURN_IF_ERROR(verify::CheckRaces(problem, schedule, order));
  return verify::CheckContents(problem, schedule, order);
}

}  // namespace agmm
