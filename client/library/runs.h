// Jobs that are submitted and awaited in one: all of a client's by one stream, in batches both
// ways.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/job.grpc.pb.h"
#include "client/connection.h"

namespace agmm {

class Core;

// Of one core, which it holds a use of while a stream is open. Thread-safe. When the stream breaks,
// what has no outcome is sent again, as other calls that are safe to repeat: under its request id
// it stays one job.
class Runs : public std::enable_shared_from_this<Runs> {
 public:
  // The job as it ended, or why there is none.
  using OnEnd = std::function<void(const absl::StatusOr<v1::Job>&)>;

  explicit Runs(Core* core) : core_(core) {}

  // `request` has a request id of its own. `on_end` runs once, not within this call: on the core's
  // loop, or where it `may_run_anywhere` on gRPC's threads. DEADLINE_EXCEEDED at `deadline`, and
  // the job goes on.
  void Run(v1::SubmitJobRequest request, absl::Time deadline, bool may_run_anywhere, OnEnd on_end);

 private:
  class Stream;
  struct Pending {
    uint64_t number = 0;           // in the order of the calls
    v1::SubmitJobRequest request;  // as it would be sent again
    std::multimap<absl::Time, std::string>::iterator deadline;
    bool anywhere = false;
    OnEnd on_end;
  };

  // With the lock.
  void Open();
  void Send();
  void AwaitDeadline();
  std::optional<Pending> Take(const std::string& request_id);
  std::map<std::string, Pending> TakeAll();
  // Without.
  void SendOnLoop();
  void OnOutcomes(v1::RunJobsResponse* response);
  void OnWritten();
  void OnBroken();
  void OnStreamEnd(const grpc::Status& status);
  void SendAgain();
  void EndLate(absl::Time armed_for);
  void EndAll(const absl::Status& why);

  Core* const core_;
  std::mutex mutex_;
  uint64_t next_ = 0;
  std::map<std::string, Pending> pending_;            // by request id
  std::multimap<absl::Time, std::string> deadlines_;  // of pending_
  std::deque<std::string>
      waiting_;  // of pending_, to be sent; those that have ended are passed over
  std::shared_ptr<Stream> stream_;         // null: none is open
  bool writing_ = false, broken_ = false;  // of stream_; broken: its end is on its way
  bool resting_ = false;                   // a new stream is opened after a while
  bool send_posted_ = false;
  std::set<absl::Time> armed_;  // when EndLate is due; a first deadline has one no later
  std::optional<Connection::Retry> retry_;  // of what is pending, since its last outcome
};

}  // namespace agmm
