// Log lines about jobs: at info one for each job that failed, was cancelled or was slow; at debug
// one for each event of a job. A job that succeeds in its usual time costs nothing here.
#pragma once

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "daemon/sequencer/job.h"
#include "kernels/base/clock.h"
#include "kernels/base/loop.h"
#include "kernels/base/units.h"
#include "kernels/base/utf8.h"
#include "kernels/schedule/plan.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/time.h"

namespace agmm::scheduler {

// Touched on the loop only, which ends before this.
class JobLog {
 public:
  // Bound on the lines at info in a period. Further lines are only counted, and the counts are
  // logged at the end of the period, so that thousands of failing jobs do not fill a disk.
  static constexpr int kMaxLines = 20;
  static constexpr absl::Duration kPeriod = absl::Seconds(10);

  JobLog(Loop* loop, const Clock* clock) : loop_(loop), clock_(clock) {}

  // The first event of a job is its admission.
  void OnEvent(const Job& job, const std::string& message) const {
    if (!spdlog::should_log(spdlog::level::debug)) return;
    spdlog::debug("job {}: {}{}", job.id, Printable(message),
                  job.record.events_size() > 1 ? "" : absl::StrFormat(" (%s)", Terms(job)));
  }
  // `error`: OK for a job that succeeded.
  void OnEnd(const Job& job, v1::Job::State state, const absl::Status& error) {
    if (error.ok()) {
      if (!IsSlow(job)) return;
      return Line(&slow_, [&job] {
        return absl::StrFormat("job %d took %s, and jobs on its plan usually take %s (%s)", job.id,
                               FormatMicros(job.took_us), FormatMicros(job.usual_us), Terms(job));
      });
    }
    const bool failed = state == v1::Job::STATE_FAILED;
    Line(failed ? &failed_ : &cancelled_, [&] {
      const absl::Duration after = clock_->Now() - FromProto(job.record.create_time());
      return absl::StrFormat("job %d %s after %s: %s (%s)", job.id,
                             failed ? "failed" : "was cancelled",
                             FormatMicros(std::max(0.0, absl::ToDoubleMicroseconds(after))),
                             absl::string_view(error.message()).substr(0, kMaxReason), Terms(job));
    });
  }

 private:
  // A job is slow if it takes more than twice its plan's usual time, and this much longer: shorter
  // jobs vary by more on any busy host.
  static constexpr double kMinExcessUs = 10'000;
  // Longest reason in a line, in bytes.
  static constexpr size_t kMaxReason = 2000;

  static std::string PlanText(const v1::Job& record) {
    const std::string how = ToString(FromProto(record.options()));
    if (record.plan_hash().empty()) return absl::StrCat("no plan yet for ", how);
    return absl::StrFormat("plan %s: %s", record.plan_hash(),
                           record.schedule() == "local" ? record.schedule() : how);
  }
  // The owner, the product and its ranks.
  static std::string Terms(const Job& job) {
    const std::vector<int>& ranks = job.spec.problem.mesh.ranks;
    return absl::StrFormat("owner %s, %s, %s %s, %s, %s", job.record.owner(),
                           ToString(job.spec.problem), ranks.size() == 1 ? "rank" : "ranks",
                           FormatRanks(ranks), Counted(job.spec.repeat, "epoch"),
                           PlanText(job.record));
  }
  static bool IsSlow(const Job& job) {
    return job.usual_us > 0 && job.took_us > 2 * job.usual_us &&
           job.took_us - job.usual_us > kMinExcessUs;
  }
  // Logs the line, or counts it in `left_out`.
  void Line(int* left_out, absl::FunctionRef<std::string()> line) {
    if (lines_ == kMaxLines) {
      ++*left_out;
      return;
    }
    if (lines_++ == 0) loop_->PostAfter(kPeriod, [this] { OnPeriodEnd(); });
    spdlog::info("{}", Printable(absl::StrReplaceAll(line(), {{"\n", " "}})));
  }
  void OnPeriodEnd() {
    lines_ = 0;
    std::vector<std::string> parts;
    for (const auto& [count, what] : {std::pair<int*, const char*>{&failed_, " failed"},
                                      {&cancelled_, " cancelled"},
                                      {&slow_, " slow"}}) {
      if (*count > 0) parts.push_back(absl::StrCat(std::exchange(*count, 0), what));
    }
    if (parts.empty()) return;
    spdlog::info("more jobs in the last {} (not logged individually): {}",
                 absl::FormatDuration(kPeriod), absl::StrJoin(parts, ", "));
  }

  Loop* const loop_;
  const Clock* const clock_;
  int lines_ = 0;                              // in the current period; 0 between periods
  int failed_ = 0, cancelled_ = 0, slow_ = 0;  // left out in this period
};

}  // namespace agmm::scheduler
