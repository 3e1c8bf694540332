// The events of one job, as they happen.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "client/connection.h"

namespace agmm {

//   JobWatch watch(&connection, IdOf(job), /*after_event=*/0, deadline);
//   while (true) {
//     AGMM_ASSIGN_OR_RETURN(const std::optional<v1::WatchJobResponse> next, watch.Next());
//     if (!next) break;  // the job has ended; the last response had it
//   }
// Where the connection breaks, goes on behind the last event, as Connection::Retry allows; no event
// comes twice. Thread-compatible.
class JobWatch {
 public:
  // Events with numbers above `after_event`; 0: all. `connection` lives longer.
  JobWatch(Connection* connection, const Id& job, int64_t after_event, absl::Time deadline)
      : connection_(connection), deadline_(deadline), retry_(connection, deadline, job.sequencer) {
    request_.set_job_id(job.number);
    request_.set_after_event(after_event);
  }
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // Blocks until the next event; absent behind the last one. After an error it is over.
  // Errors: NOT_FOUND, ABORTED where its sequencer is gone, DEADLINE_EXCEEDED, UNAVAILABLE,
  // CANCELLED after an Interrupt.
  absl::StatusOr<std::optional<v1::WatchJobResponse>> Next();
  // The number of the last event; where another watch would go on.
  int64_t last_event() const { return request_.after_event(); }

 private:
  Connection* const connection_;
  const absl::Time deadline_;
  Connection::Retry retry_;
  v1::WatchJobRequest request_;
  std::unique_ptr<Connection::Call> call_;  // with stream_
  std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> stream_;
  bool over_ = false;
};

}  // namespace agmm
