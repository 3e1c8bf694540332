#include "client/ctl/job_line.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/connect/job_watch.h"
#include "client/ctl/job_progress.h"
#include "kernels/base/thread.h"

namespace agmm {
namespace {

constexpr auto kAskAgain = std::chrono::seconds(1);
// Longer than the sequencer waits for its nodes.
constexpr absl::Duration kAnswerBound = absl::Seconds(2);

}  // namespace

JobLine::JobLine(Connection* connection, const Id& job, absl::Duration limit)
    : line_([this, label = absl::StrCat("job ", job.number), limit](absl::Duration elapsed) {
        return absl::StrCat(WaitText(label, elapsed, limit), where_.empty() ? "" : "  ", where_);
      }) {
  if (!line_.IsShown()) return;
  asking_ = std::make_unique<Connection>(connection->endpoint());
  absl::StatusOr<std::thread> thread =
      StartThread("the progress of a job", [this, job] { Ask(job); });
  // Without one the line shows the time alone.
  if (thread.ok()) thread_ = *std::move(thread);
}

JobLine::~JobLine() {
  stop_.request_stop();
  if (asking_ != nullptr) asking_->Interrupt();
  if (thread_.joinable()) thread_.join();
}

void JobLine::Ask(const Id& job) {
  const std::stop_token stop = stop_.get_token();
  std::mutex mutex;
  std::condition_variable_any none;  // the waits end by the time or the stop token
  std::unique_lock lock(mutex);
  NodeNameFn names;
  v1::Job before;
  while (true) {
    none.wait_for(lock, stop, kAskAgain, [] { return false; });
    if (stop.stop_requested()) return;
    if (names == nullptr) {
      if (const auto status = asking_->GetStatus(kAnswerBound); status.ok())
        names = NamesOf(*status);
    }
    const absl::StatusOr<v1::Job> now =
        names == nullptr ? absl::UnavailableError("no status")
                         : asking_->GetJobProgress(job, /*step_times=*/false, kAnswerBound);
    const std::string where =
        now.ok() && !HasEnded(*now) ? ProgressLineText(before, *now, names) : "";
    line_.Update([&] { where_ = where; });
    if (now.ok()) before = *now;
  }
}

}  // namespace agmm
