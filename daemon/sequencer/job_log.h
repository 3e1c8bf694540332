// Log lines about jobs: at info one for each job that failed, was cancelled or was slow; at debug
// one for each event of a job. A job that succeeds in its usual time costs nothing here.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "daemon/sequencer/job.h"
#include "kernels/base/clock.h"
#include "kernels/base/loop.h"

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
  void OnEvent(const Job& job, const std::string& message) const;
  // `error`: OK for a job that succeeded.
  void OnEnd(const Job& job, v1::Job::State state, const absl::Status& error);

 private:
  // Logs the line, or counts it in `left_out`.
  void Line(int* left_out, absl::FunctionRef<std::string()> line);
  void OnPeriodEnd();

  Loop* const loop_;
  const Clock* const clock_;
  int lines_ = 0;                              // in the current period; 0 between periods
  int failed_ = 0, cancelled_ = 0, slow_ = 0;  // left out in this period
};

}  // namespace agmm::scheduler
