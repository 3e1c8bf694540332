// Waiting for a job on behalf of a person.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/connection.h"

namespace agmm {

// A daemon that keeps a job's time says itself when it is over; so much later nobody waits for it.
inline constexpr absl::Duration kDaemonGrace = absl::Seconds(15);

// The job once it has ended, however it ended. `on_event`, if any, is told its events behind
// `after_event` as they come; on a terminal the time is shown. `timeout` is the job's.
// Errors: as JobWatch's.
absl::StatusOr<v1::Job> AwaitJob(Connection* connection, const Id& job, int64_t after_event,
                                 absl::Duration timeout,
                                 const std::function<void(const v1::JobEvent&)>& on_event);

// OK where the job has succeeded, else its error, which names the job and, where its time was up,
// the flag that set it.
absl::Status OutcomeOf(const v1::Job& job, absl::Duration timeout);

}  // namespace agmm
