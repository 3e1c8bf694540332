// Jobs that are submitted and awaited in one call. All runs of a client share a stream, with
// batches in both directions.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "agmm/v1/job.grpc.pb.h"
#include "client/connect/connection.h"
#include "kernels/base/deadline.h"
#include "kernels/base/loop.h"

namespace agmm {

// Thread-safe. If the stream breaks, jobs without an outcome are sent again, like other calls that
// are safe to repeat: the request id prevents duplicates.
class Runs final : private grpc::ClientBidiReactor<v1::RunJobsRequest, v1::RunJobsResponse> {
 public:
  // Called with the job as it ended, or with the error.
  using OnEnd = std::function<void(const absl::StatusOr<v1::Job>&)>;

  // `sequencer` assigned the tensor ids in the requests; empty: they have names alone. `cancel`
  // cancels the job of a request; it must not wait, and is called on any thread.
  Runs(Connection* connection, Loop* loop, const std::string& sequencer,
       std::function<void(const v1::SubmitJobRequest&)> cancel);
  // Waits for the stream, which an Interrupt has ended. All runs have ended, and so has the loop.
  ~Runs() override;

  // Gives `request` a unique request id. Calls `on_end` once, on any thread. Fails with
  // DEADLINE_EXCEEDED at `deadline`; the job continues. A stop request cancels the job, even if the
  // connection breaks or the client closes after it; it has no effect once `on_end` is called.
  void Run(v1::SubmitJobRequest request, Deadline deadline, const std::stop_token& stop,
           OnEnd on_end);

 private:
  enum class Phase {
    kClosed,  // no stream
    kOpen,    // a stream, with no write in progress
    kWriting,
    kBroken,  // the stream has failed: OnDone follows, and SendAgain if there are jobs
  };
  struct Pending {
    v1::SubmitJobRequest request;
    Loop::Timer deadline;
    OnEnd on_end;
    std::stop_token stop;
    std::unique_ptr<std::stop_callback<std::function<void()>>>
        on_stop;  // null: no request can come
  };
  // Ends a run that is no longer pending.
  static void End(Pending run, const absl::StatusOr<v1::Job>& job);

  // With the lock.
  void Open();
  void Send();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void SendAgain();
  void EndLate(const std::string& id);
  void Cancel(const std::string& id);

  Connection* const connection_;
  Loop* const loop_;
  const std::string sequencer_;
  const std::function<void(const v1::SubmitJobRequest&)> cancel_;
  const std::string prefix_;      // of the request ids
  v1::RunJobsRequest request_;    // gRPC's in kWriting
  v1::RunJobsResponse response_;  // gRPC's while it reads
  std::mutex mutex_;              // guards all below
  std::condition_variable closed_;
  uint64_t count_ = 0;                      // of the runs so far
  std::map<std::string, Pending> pending_;  // by request id, which is the order of the calls
  std::string last_sent_;                   // later request ids have not been sent
  Phase phase_ = Phase::kClosed;
  std::optional<Connection::Call> call_;  // of the stream
  Connection::Retry retry_;               // since the last outcome
  bool send_posted_ = false;
};

}  // namespace agmm
