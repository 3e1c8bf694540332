#include "client/ctl/measurement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/topo_text.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr absl::Duration kProgressPoll = absl::Milliseconds(100);
constexpr char kGoesOn[] = "; the measurement goes on, and `agmmctl topo` shows the result";

// Returns the reason why a world is not complete, which names its missing nodes. Empty if it is
// complete, or nothing waits for it.
absl::StatusOr<std::string> Incomplete(Connection* connection, const v1::MachineStatus& machine) {
  if (machine.state() != v1::MachineStatus::STATE_WAITING) return "";
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse world, connection->GetStatus());
  return world.ready() ? "" : world.reason();
}

}  // namespace

absl::StatusOr<v1::MachineStatus> AwaitMeasurement(Connection* connection, absl::Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  AGMM_ASSIGN_OR_RETURN(v1::MachineStatus status, connection->MeasureMachine());
  std::string incomplete;
  TerminalLine line([&](absl::Duration) { return MeasuringText(status, incomplete); });
  while (status.state() != v1::MachineStatus::STATE_IDLE) {
    if (deadline.HasPassed()) {
      return absl::DeadlineExceededError(absl::StrCat("no result after ",
                                                      absl::FormatDuration(timeout), ": ",
                                                      MeasuringText(status, incomplete), kGoesOn));
    }
    absl::SleepFor(std::min(deadline.Left(), kProgressPoll));
    absl::StatusOr<v1::MachineStatus> now = connection->GetMachine();
    if (absl::IsCancelled(now.status()))
      return absl::CancelledError(absl::StrCat("cancelled", kGoesOn));
    AGMM_RETURN_IF_ERROR(now.status());
    AGMM_ASSIGN_OR_RETURN(std::string missing, Incomplete(connection, *now));
    line.Update([&] {
      status = *std::move(now);
      incomplete = std::move(missing);
    });
  }
  return status;
}

}  // namespace agmm
