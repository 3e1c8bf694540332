// Waiting for a job, and its events as they happen.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agmm/v1/job.pb.h"
#include "client/connect/connection.h"
#include "kernels/base/deadline.h"
#include "kernels/base/loop.h"

namespace agmm {

// Called with each event, in order, each once; false ends the watch. May be null.
using OnJobEvent = std::function<bool(const v1::JobEvent&)>;
// Called once, last, with the job in its final state, without the times of its steps. Errors:
// NOT_FOUND; ABORTED if the job's sequencer was lost; DEADLINE_EXCEEDED if the job is still queued
// or running; UNAVAILABLE; CANCELLED after an Interrupt, or when on_event returned false.
using OnJobEnd = std::function<void(const absl::StatusOr<v1::Job>&)>;

// Watches `job` in the background, without a thread: calls `on_event` with the events numbered
// above `after_event`, and then `on_end`, both on `loop`. After a broken connection it continues
// from the last event, as Caller::Retry allows. `connection` and `loop` must outlive `on_end`.
void WatchJob(Connection* connection, Loop* loop, const Id& job, int64_t after_event,
              Deadline deadline, OnJobEvent on_event, OnJobEnd on_end);
// Like WatchJob above, but blocks. `on_event` is called on another thread.
absl::StatusOr<v1::Job> WatchJob(Connection* connection, const Id& job, int64_t after_event,
                                 Deadline deadline, OnJobEvent on_event);

bool HasEnded(const v1::Job& job);
// OK if the job has succeeded, else its error: never OK.
absl::Status OutcomeOf(const v1::Job& job);

}  // namespace agmm
