#include "client/ctl/job_wait.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/ctl/wait_line.h"
#include "client/job_outcome.h"
#include "client/job_watch.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

bool NamesJob(absl::string_view message, uint64_t job_id) {
  const std::string name = absl::StrCat("job ", job_id);
  for (size_t at = message.find(name); at != message.npos; at = message.find(name, at + 1)) {
    const size_t end = at + name.size();
    if (end == message.size() || !absl::ascii_isdigit(message[end])) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<v1::Job> AwaitJob(Connection* connection, const Id& job, int64_t after_event,
                                 absl::Duration timeout,
                                 const std::function<void(const v1::JobEvent&)>& on_event) {
  WaitLine line(absl::StrCat("job ", job.number), timeout);
  const absl::Time deadline = absl::Now() + timeout + kDaemonGrace;
  if (!on_event) return connection->WaitJob(job, deadline);
  JobWatch watch(connection, job, after_event, deadline);
  v1::Job ended;
  while (true) {
    AGMM_ASSIGN_OR_RETURN(std::optional<v1::WatchJobResponse> next, watch.Next());
    if (!next) return ended;
    if (next->has_job()) ended = std::move(*next->mutable_job());
    if (next->has_event()) line.Around([&] { on_event(next->event()); });
  }
}

absl::Status OutcomeOf(const v1::Job& job, absl::Duration timeout) {
  const absl::Status error = OutcomeOf(job);
  if (error.ok() || NamesJob(error.message(), job.job_id())) return error;
  return Annotate(error, absl::IsDeadlineExceeded(error)
                             ? absl::StrFormat("job %d did not end within --timeout %s",
                                               job.job_id(), absl::FormatDuration(timeout))
                             : absl::StrFormat("job %d", job.job_id()));
}

}  // namespace agmm
