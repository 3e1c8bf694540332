#include "kernels/schedule/verify.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/questions.h"
#include "kernels/schedule/verify_checks.h"

namespace agmm {
namespace {

// Checks that multiplies whose sum stays on chip can run as one tile pass, each tile going through
// all of them: none waits for a step that follows an earlier one, and the last writes no bytes that
// an earlier one reads.
absl::Status CheckPasses(const Problem& problem, const Schedule& schedule, const Order& order) {
  // A wait of a step, and the first step of its tile pass.
  struct PassWait {
    Rank rank;
    int step, first;
    Slot slot;
  };
  Questions questions(order);
  std::vector<PassWait> doubts;
  const auto check = [&](const PassWait& wait) {
    const Event start = {wait.rank, wait.first, -1, 0}, event = order.Source(wait.slot, 0);
    const Known late = event == start ? Known::kYes : questions.Before(start, event);
    if (late == Known::kUnknown) doubts.push_back(wait);
    if (late != Known::kYes) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s waits for slot %d:%d, which is signalled only after step %d, with which it shares a "
        "tile pass; keep the sum in the workspace or drop the wait",
        StepName(schedule, wait.rank, wait.step), wait.slot.rank, wait.slot.index, wait.first));
  };
  for (const auto& [rank, step] : order.sequence()) {
    const Step& s = schedule.ranks[rank][step];
    const auto* multiply = std::get_if<Multiply>(&s.op);
    if (multiply == nullptr || multiply->acc || !multiply->accumulate) continue;
    int first = step;
    do {
      first = order.LanePredecessor(rank, first);
      for (const Access& read : AccessesOf(schedule.ranks[rank][first], rank, first)) {
        if (!multiply->finish || multiply->out.rank != read.place.rank ||
            multiply->out.buffer != read.place.buffer ||
            !Overlap(PaddedFootprintOf(problem, multiply->c, multiply->out),
                     FootprintOf(problem, read))) {
          continue;
        }
        return absl::FailedPreconditionError(absl::StrFormat(
            "%s writes %s over %s, which step %d of the same tile pass reads",
            StepName(schedule, rank, step), PlacedName(problem, multiply->c, multiply->out),
            PlacedName(problem, read.block, read.place), first));
      }
    } while (std::get<Multiply>(schedule.ranks[rank][first].op).accumulate);
    for (const Wait& wait : s.waits) {
      if (wait.lag != 0) continue;
      AGMM_RETURN_IF_ERROR(check({rank, step, first, wait.slot}));
    }
  }
  while (!doubts.empty()) {
    questions.Settle();
    for (const PassWait& wait : std::exchange(doubts, {})) AGMM_RETURN_IF_ERROR(check(wait));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Verify(const Problem& problem, const Topology& topology, const Schedule& schedule) {
  AGMM_RETURN_IF_ERROR(Validate(problem));
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank)
    AGMM_RETURN_IF_ERROR(VerifySteps(problem, topology, schedule, rank));
  AGMM_ASSIGN_OR_RETURN(const Order order, Order::Build(schedule));
  AGMM_RETURN_IF_ERROR(CheckPasses(problem, schedule, order));
  AGMM_RETURN_IF_ERROR(verify::CheckRaces(problem, schedule, order));
  return verify::CheckContents(problem, schedule, order);
}

}  // namespace agmm
