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

}  // namespace

absl::StatusOr<v1::MachineStatus> AwaitMeasurement(Connection* connection, absl::Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  AGMM_ASSIGN_OR_RETURN(v1::MachineStatus status, connection->MeasureMachine());
  TerminalLine line([&status](absl::Duration) { return MeasuringText(status); });
  while (status.state() != v1::MachineStatus::STATE_IDLE) {
    if (deadline.HasPassed()) {
      return absl::DeadlineExceededError(
          absl::StrCat(MeasuringText(status), " after ", absl::FormatDuration(timeout),
                       "; it goes on, and `agmmctl topo` shows the result"));
    }
    absl::SleepFor(std::min(deadline.Left(), kProgressPoll));
    AGMM_ASSIGN_OR_RETURN(v1::MachineStatus now, connection->GetMachine());
    line.Update([&] { status = std::move(now); });
  }
  return status;
}

}  // namespace agmm
