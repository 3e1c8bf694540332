// A client's connection to one daemon, which passes on to the others what is theirs. Every call
// blocks, has a deadline where its work has a bound, and answers with the daemon's own error: code,
// message and reason.
//
// UNAVAILABLE says that no daemon answers, or that it was lost in mid-call, and names the endpoint.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/cluster.grpc.pb.h"
#include "agmm/v1/job.grpc.pb.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "client/endpoint.h"

namespace agmm {

// Thread-safe.
class Connection {
 public:
  // Connects with the first call.
  explicit Connection(Endpoint endpoint);
  // Ends the session. No call may be in progress.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const std::string& endpoint() const { return endpoint_.text; }

  absl::StatusOr<v1::GetStatusResponse> GetStatus();

  // Opens a session and returns its id. It ends with this object, or with the process, however that
  // ends: its jobs are cancelled and its tensors deleted. At most once.
  absl::StatusOr<std::string> OpenSession();

  absl::StatusOr<v1::Tensor> CreateTensor(const v1::CreateTensorRequest& request);
  absl::StatusOr<v1::Job> SubmitJob(const v1::SubmitJobRequest& request);
  // The job once it has ended, however it ended. DEADLINE_EXCEEDED when the daemon does not say so
  // by then.
  absl::StatusOr<v1::Job> WaitJob(uint64_t job_id, absl::Time deadline);
  // Goes out after an Interrupt, too.
  absl::StatusOr<v1::Job> CancelJob(uint64_t job_id);

  // Makes the calls in progress and all later ones fail with CANCELLED.
  void Interrupt();

  // One call: its context, and its status in our terms. For the streams of tensor_transfer.cc.
  class Call {
   public:
    Call(Connection* connection, absl::Time deadline, bool interruptible = true);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    grpc::ClientContext* context() { return &context_; }
    absl::Status Convert(const grpc::Status& status);

   private:
    Connection* const connection_;
    grpc::ClientContext context_;
  };
  v1::TensorService::Stub* tensors() { return tensors_.get(); }

 private:
  const Endpoint endpoint_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  std::unique_ptr<v1::TensorService::Stub> tensors_;
  std::unique_ptr<v1::JobService::Stub> jobs_;

  std::mutex mutex_;
  bool interrupted_ = false;
  bool answered_ = false;  // a daemon has been there
  std::set<grpc::ClientContext*> active_;

  std::unique_ptr<Call> session_;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> session_stream_;
};

}  // namespace agmm
