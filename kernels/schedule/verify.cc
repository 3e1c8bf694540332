#include "kernels/schedule/verify.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify_checks.h"

namespace agmm {
namespace {

// Checks that multiplies whose sum stays on chip can run as one tile pass, in which each tile goes
// through all of them: the last writes no bytes that an earlier one reads. Order has checked that
// none waits for a step that follows an earlier one.
absl::Status CheckPasses(const Problem& problem, const Schedule& schedule, const Order& order) {
  for (const auto& [rank, step] : order.sequence()) {
    const auto* multiply = std::get_if<Multiply>(&schedule.ranks[rank][step].op);
    if (multiply == nullptr || multiply->acc || !multiply->accumulate || !multiply->finish)
      continue;
    const Footprint written = PaddedFootprintOf(problem, multiply->c, multiply->out);
    int earlier = step;
    do {
      earlier = order.LanePredecessor(rank, earlier);
      for (const Access& read : AccessesOf(schedule.ranks[rank][earlier], rank, earlier)) {
        if (multiply->out.rank != read.place.rank || multiply->out.buffer != read.place.buffer ||
            !Overlap(written, FootprintOf(problem, read))) {
          continue;
        }
        return absl::FailedPreconditionError(absl::StrFormat(
            "%s writes %s over %s, which step %d of the same tile pass reads",
            StepName(schedule, rank, step), PlacedName(problem, multiply->c, multiply->out),
            PlacedName(problem, read.block, read.place), earlier));
      }
    } while (std::get<Multiply>(schedule.ranks[rank][earlier].op).accumulate);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Verify(const Problem& problem, const Topology& topology, const Schedule& schedule,
                    int max_lanes) {
  AGMM_RETURN_IF_ERROR(Validate(problem));
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank)
    AGMM_RETURN_IF_ERROR(VerifySteps(problem, topology, schedule, rank, max_lanes));
  AGMM_ASSIGN_OR_RETURN(const Order order, Order::Build(schedule));
  AGMM_RETURN_IF_ERROR(CheckPasses(problem, schedule, order));
  AGMM_RETURN_IF_ERROR(CheckRaces(problem, schedule, order));
  return CheckContents(problem, schedule, order);
}

}  // namespace agmm
