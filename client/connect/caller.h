// Calls to one daemon: each attempt and its errors, and when a call is repeated.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/connect/endpoint.h"
#include "client/connect/open_call.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"

namespace agmm {

// Longest time until a stopped daemon or an unreachable host is detected.
inline constexpr absl::Duration kNoticeBound = absl::Seconds(15);
// Longest time that a client waits for a lost daemon to come back.
inline constexpr absl::Duration kRetryBound = absl::Seconds(10);

// Id of a job or a tensor, and the sequencer that gave it, because every sequencer's ids begin at
// 1. Another sequencer refuses it with ABORTED and PEER_LOST. An id without a sequencer, as people
// type it, means the job or tensor that has this number now; such a call is repeated only at the
// sequencer that the connection knew when the call began.
struct Id {
  Id(uint64_t id, std::string sequencer = "") : number(id), sequencer(std::move(sequencer)) {}
  uint64_t number;
  std::string sequencer;
};

// CANCELLED, of a call whose stop token was used.
absl::Status StoppedError();

class Session;

// The state that all calls of a connection share. Thread-safe.
class Caller {
 public:
  // The first call opens the connection.
  explicit Caller(Endpoint endpoint);
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  const Endpoint& endpoint() const { return endpoint_; }
  // The sequencer's incarnation, from the last response that named it; empty if none has yet.
  std::string known_sequencer();
  // Makes the calls in progress and all later ones fail with CANCELLED.
  void Interrupt();

  // One attempt of a call: its context, and its status in this client's terms.
  class Call {
   public:
    // `sequencer` assigned the ids in the request. Pass an infinite deadline if the work has no
    // bound. A request to `stop` makes the call fail with CANCELLED.
    Call(Caller* caller, Deadline deadline, const std::string& sequencer = "",
         bool interruptible = true, std::stop_token stop = {});
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    grpc::ClientContext* context() { return shared_->grpc(); }
    // Returns the callback of a unary call. It keeps `messages`, which gRPC uses until it runs.
    std::function<void(grpc::Status)> OnEnd(std::shared_ptr<void> messages);
    // Waits for that callback, until `limit`. Once the call is cancelled or late, the wait ends
    // even if gRPC still uses the messages: then `ended` is false.
    grpc::Status Await(Deadline limit = Deadline::Infinite()) { return shared_->Await(limit); }
    bool ended() { return shared_->ended(); }
    void Cancel() { shared_->Cancel(); }
    // Returns the daemon's own error if it sent one, else what happened to the connection.
    absl::Status Convert(const grpc::Status& status);
    // True if the converted status says that the connection to a daemon broke.
    bool lost() const { return lost_; }
    // True if it says that the daemon has no memory for the transfer at the moment.
    bool busy() const { return busy_; }

   private:
    friend class Caller;
    absl::Status NoAnswer(const grpc::Status& status, bool answered_before);

    struct Stop {
      OpenCall* context;
      void operator()() const { context->Cancel(); }
    };

    Caller* const caller_;
    const int64_t start_ns_ = MonotonicNanos();
    const std::shared_ptr<OpenCall> shared_;
    const std::stop_token stop_;
    const std::stop_callback<Stop> on_stop_{stop_, Stop{shared_.get()}};
    bool lost_ = false, busy_ = false;
    bool doubtful_ = false;  // "no daemon answers" may be wrong: see kDoubt
  };

  // Decides when a call that is safe to repeat is sent again, and to which sequencer.
  class Retry {
   public:
    // `sequencer` assigned the id that the call is about: see Id. Absent if the call means the same
    // to every sequencer.
    Retry(Caller* caller, Deadline deadline, std::optional<std::string> sequencer = std::nullopt)
        : caller_(caller),
          deadline_(deadline),
          sequencer_(sequencer.value_or("")),
          known_(sequencer == "" ? caller->known_sequencer() : std::move(sequencer)) {}

    // The argument for the next attempt's Call.
    const std::string& sequencer() const { return sequencer_; }
    // Returns the delay before the next attempt, after `call`, whose status has been converted.
    // Absent if that status is final.
    std::optional<absl::Duration> Next(const Call& call);
    // The number of repetitions of a lost call.
    int count() const { return count_; }
    // Called after progress, so that a later break may last as long as the first.
    void Restart() {
      count_ = 0;
      doubted_ = false;
    }

   private:
    Caller* caller_;
    Deadline deadline_;
    std::string sequencer_;
    std::optional<std::string> known_;  // for a call about an id
    Deadline give_up_;
    absl::Duration delay_;
    int count_ = 0;
    bool doubted_ = false;
  };
  // Waits before the next attempt, or until an Interrupt or a request to `stop`. False if the
  // session is lost.
  bool WaitToRetry(absl::Duration delay, bool interruptible = true, std::stop_token stop = {});

 protected:
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Sets known_sequencer, unless `sequencer` is empty.
  void Learn(std::string sequencer);

 private:
  friend class Session;
  // Once the session is lost, no call is repeated, because its jobs and tensors ended with it.
  enum class SessionState { kNone, kOpen, kLost };
  void SetSession(SessionState state);
  bool SessionLost();

  const Endpoint endpoint_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::mutex mutex_;  // guards all below
  std::condition_variable_any interruption_;
  bool interrupted_ = false;
  bool answered_ = false;  // a daemon has answered here
  std::string sequencer_;
  SessionState session_ = SessionState::kNone;
  std::set<OpenCall*> active_;
};

}  // namespace agmm
