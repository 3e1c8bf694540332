// A client's connection to one daemon, which passes on to the others what is theirs. Every call
// blocks, has a deadline, and answers with the daemon's own error: code, message and reason.
//
// UNAVAILABLE without a reason says that no daemon answers, or that it was lost in mid-call, and
// names the endpoint. Once a daemon has answered, calls that are safe to repeat try again for about
// kRetryBound first, and before that for 0.35 s if the other host did not refuse the connection;
// what a daemon itself refuses is never tried again here.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/cluster.grpc.pb.h"
#include "agmm/v1/job.grpc.pb.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "client/endpoint.h"

namespace agmm {

// For calls that only exchange a few words.
inline constexpr absl::Duration kShortCall = absl::Seconds(10);
// Making a tensor or a plan waits for every node of its mesh.
inline constexpr absl::Duration kPlacingCall = absl::Seconds(30);
// A fill waits for the jobs before it, too.
inline constexpr absl::Duration kFillingCall = absl::Minutes(10);
// How long a daemon that was lost may take to come back.
inline constexpr absl::Duration kRetryBound = absl::Seconds(10);

// The id of a job or a tensor, and the sequencer that gave it, as Job and Tensor say: every
// sequencer begins at 1. The next one refuses it with ABORTED and PEER_LOST. Without a sequencer,
// as people type it, it means what has the id now; such a call is repeated for the sequencer that
// the connection knew when it began.
struct Id {
  Id(uint64_t id, std::string sequencer = "") : number(id), sequencer(std::move(sequencer)) {}
  uint64_t number;
  std::string sequencer;
};
inline Id IdOf(const v1::Job& job) { return Id(job.job_id(), job.sequencer()); }
inline Id IdOf(const v1::Tensor& tensor) { return Id(tensor.tensor_id(), tensor.sequencer()); }

// Thread-safe. A `timeout` bounds a call with all its attempts.
class Connection {
 public:
  // Connects with the first call.
  explicit Connection(Endpoint endpoint);
  // Ends the session. No call may be in progress.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const std::string& endpoint() const { return endpoint_.text; }

  absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout = kShortCall);

  // Opens a session and returns its id. It ends with this object, or with the process, however that
  // ends: its jobs are cancelled and its tensors deleted. At most once. Once it is lost, no call
  // tries again.
  absl::StatusOr<std::string> OpenSession(absl::Duration timeout = kShortCall);

  // Tries again where there is a request id.
  absl::StatusOr<v1::Tensor> CreateTensor(const v1::CreateTensorRequest& request,
                                          absl::Duration timeout = kPlacingCall);
  // In its turn: behind the jobs admitted before it that use the tensor. Never tries again: between
  // two fills, another may have written.
  absl::StatusOr<v1::Tensor> FillTensor(const v1::FillTensorRequest& request,
                                        absl::Duration timeout = kFillingCall);
  // Errors: NOT_FOUND.
  absl::StatusOr<v1::Tensor> GetTensor(const v1::TensorRef& tensor,
                                       absl::Duration timeout = kShortCall);
  // All pages, as one response.
  absl::StatusOr<v1::ListTensorsResponse> ListTensors(absl::Duration timeout = kShortCall);
  // Errors: NOT_FOUND, but not where an attempt of this call may have deleted it.
  absl::Status DeleteTensor(const Id& tensor, absl::Duration timeout = kShortCall);

  // Of the daemon that the upload came through; answers once what it has received is in place.
  // Errors: NOT_FOUND.
  absl::StatusOr<v1::Upload> GetUpload(const std::string& upload_id,
                                       absl::Duration timeout = kPlacingCall);
  absl::Status AbortUpload(const std::string& upload_id, absl::Duration timeout = kShortCall);

  // Tries again where there is a request id: it is one job of one sequencer. Where that goes
  // meanwhile, and the job with it, the next one is asked for it, too, if all tensors are given by
  // name. `sequencer` gave those ids otherwise.
  absl::StatusOr<v1::Job> SubmitJob(const v1::SubmitJobRequest& request,
                                    absl::Duration timeout = kPlacingCall,
                                    const std::string& sequencer = "");
  // The job as it is. Errors: NOT_FOUND.
  absl::StatusOr<v1::Job> GetJob(const Id& job, absl::Duration timeout = kShortCall);
  // The job once it has ended, however it ended. DEADLINE_EXCEEDED when the daemon does not say so
  // by then.
  absl::StatusOr<v1::Job> WaitJob(const Id& job, absl::Time deadline);
  // Goes out after an Interrupt, too.
  absl::StatusOr<v1::Job> CancelJob(const Id& job, absl::Duration timeout = kShortCall);
  // One page. See JobWatch for the events of one job.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request,
                                                absl::Duration timeout = kShortCall);

  // Makes the calls in progress and all later ones fail with CANCELLED.
  void Interrupt();

  // One attempt of a call: its context, and its status in our terms. For streams, and for calls
  // that do not block; a call with an infinite deadline is one whose work has no bound.
  class Call {
   public:
    // `sequencer` gave the ids in the request.
    Call(Connection* connection, absl::Time deadline, const std::string& sequencer = "",
         bool interruptible = true);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    grpc::ClientContext* context() { return &context_; }
    absl::Status Convert(const grpc::Status& status);
    // The status that was converted says that the connection broke, to a daemon that had been
    // there.
    bool lost() const { return lost_; }

   private:
    friend class Connection;
    Connection* const connection_;
    const absl::Time start_ = absl::Now();
    grpc::ClientContext context_;
    bool lost_ = false;
    bool doubtful_ = false;  // "no daemon answers" may be wrong
  };

  // When a call that is safe to repeat goes out again, and to whom.
  class Retry {
   public:
    // Of a call that means the same to every sequencer.
    Retry(Connection* connection, absl::Time deadline)
        : connection_(connection), deadline_(deadline) {}
    // Of one about an id of `sequencer`'s, as in Id.
    Retry(Connection* connection, absl::Time deadline, const std::string& sequencer)
        : connection_(connection),
          deadline_(deadline),
          about_id_(true),
          sequencer_(sequencer),
          known_(sequencer.empty() ? connection->known_sequencer() : sequencer) {}

    // Of the next attempt's Call.
    const std::string& sequencer() const { return sequencer_; }
    // How long to wait before the next attempt, behind `call`, whose status has been converted.
    // Absent: that status stands.
    std::optional<absl::Duration> Next(const Call& call);
    // Of the attempts behind a lost one.
    int count() const { return count_; }

   private:
    Connection* const connection_;
    const absl::Time deadline_;
    const bool about_id_ = false;
    std::string sequencer_, known_;
    absl::Time give_up_;
    absl::Duration delay_;
    int count_ = 0, dials_ = 0;
  };
  // Waits out what Retry said; true if the next attempt may begin.
  bool WaitToRetry(absl::Duration delay, bool interruptible = true);

  // Of the last answer that named one; empty: none has.
  std::string known_sequencer();

  v1::TensorService::Stub* tensors() { return tensors_.get(); }
  v1::JobService::Stub* jobs() { return jobs_.get(); }

 private:
  class Session;
  struct Options {
    absl::Time deadline;
    bool safe = true;
    bool interruptible = true;
    bool gone_is_done = false;  // NOT_FOUND behind the first attempt is OK
    std::optional<std::string> sequencer = std::nullopt;  // where it is about an id
  };
  // Attempts `send(context, response)` as `options` allow.
  template <typename Response, typename Send>
  absl::StatusOr<Response> Run(const Options& options, Send send);
  bool SessionLost();
  template <typename Response>
  void Learn(const Response& response);

  const Endpoint endpoint_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  std::unique_ptr<v1::TensorService::Stub> tensors_;
  std::unique_ptr<v1::JobService::Stub> jobs_;

  std::mutex mutex_;
  std::condition_variable interruption_;
  bool interrupted_ = false;
  bool answered_ = false;  // a daemon has been there
  std::string sequencer_;  // see known_sequencer
  std::set<grpc::ClientContext*> active_;
  std::unique_ptr<Session> session_;
};

}  // namespace agmm
