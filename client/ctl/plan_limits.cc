#include "client/ctl/plan_limits.h"

#include <new>

#include "absl/strings/str_format.h"
#include "kernels/base/host_limits.h"
#include "kernels/base/units.h"

namespace agmm {

std::string RefusedByDaemons(const PlanCost& cost) {
  if (cost.steps <= kMaxPlanSteps) return "";
  return absl::StrFormat("it has about %d steps, and daemons plan at most %d", cost.steps,
                         kMaxPlanSteps);
}

std::string TooLargeFor(const Machine& machine, const Problem& problem, int64_t workspace_bytes) {
  int64_t bytes = workspace_bytes;
  for (const Tensor& tensor : problem.tensors) bytes += ShardBytes(problem.mesh, tensor);
  if (machine.heap_bytes == 0 || bytes <= machine.heap_bytes) return "";
  return absl::StrFormat(
      "the shards of a rank and its workspace take %s, and a device of %s has %s; use more ranks",
      FormatBytes(bytes), machine.name, FormatBytes(machine.heap_bytes));
}

absl::Status CheckMemory(const PlanCost& cost) {
  const int64_t usable = UsableMemory();
  if (cost.bytes <= usable) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the plan has about %d steps and takes about %s to plan and to prove; this process may use "
      "%s; use fewer chunks (--chunks) or fewer ranks (--mesh)",
      cost.steps, FormatBytes(cost.bytes), FormatBytes(usable)));
}

absl::StatusOr<Schedule> PlanWithinMemory(const Problem& problem, const Topology& topology,
                                          const Recipe& recipe) {
  try {
    return PlanWith(problem, topology, recipe);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "the plan takes more memory than this process may use; use fewer chunks (--chunks) or "
        "fewer ranks (--mesh)");
  }
}

}  // namespace agmm
