// The state of a Client, which the handles of its jobs and its mappings share.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "client/agmm.h"
#include "client/connect/connection.h"
#include "client/library/background.h"
#include "client/library/runs.h"
#include "client/library/to_public.h"
#include "client/library/transfer_queue.h"
#include "kernels/base/deadline.h"
#include "kernels/base/loop.h"

namespace agmm {

// Returns true in a forked child of a process that has started gRPC. gRPC does not work there: its
// threads run in the parent alone, and its sockets belong to both. A child must not touch any call,
// connection or mutex of the parent, not even to destroy it; objects that it would destroy stay in
// its memory.
bool Forked();
// FAILED_PRECONDITION, for every call in such a child.
Status ForkedError();

// A submit, and the sequencer of the handles in it; empty for names alone.
struct JobCall {
  v1::SubmitJobRequest request;
  std::string sequencer;
};

// Thread-safe.
class ClientState : public std::enable_shared_from_this<ClientState> {
 public:
  ClientState(Endpoint endpoint, ClientOptions options);
  // Finds the daemon, and opens a session if the options request one.
  absl::Status Open();
  // Fails the calls in progress, waits for their callbacks, and ends the connection. Another call
  // of this function waits for the first one. Must not run in a callback. In a forked child, keeps
  // this object forever instead.
  void Close();

  // Keeps the connection and the loop alive, because Close waits until it is released.
  using Use = std::shared_ptr<ClientState>;
  // Null if closed, or in a forked child; Refusal is the error.
  Use Begin();
  Connection* connection() { return &*connection_; }
  Loop* loop() { return &*loop_; }  // runs the callbacks
  // Calls `ask` with the connection and returns its result as the public header's type.
  template <typename Ask>
  auto Call(Ask ask) -> decltype(ToPublic(ask(connection())));

  const std::string& endpoint() const { return endpoint_; }
  const std::string& session() const { return session_; }
  absl::Duration CallTimeout(Milliseconds given) const;
  absl::Duration TransferTimeout(Milliseconds given) const;
  // Returns the deadline of a wait for a job; if `given` is zero, the job's timeout plus a call's.
  Deadline WaitDeadline(Milliseconds given, absl::Duration job_timeout) const;

  // Learns the number of devices from a world that is ready.
  absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout,
                                                  const std::stop_token& stop = {});

  // Return requests with a new request id. An empty mesh means all devices of the world, which are
  // asked for, until `deadline`, if no world that was ready has been seen.
  absl::StatusOr<v1::CreateTensorRequest> RequestFor(const std::string& name,
                                                     const TensorSpec& spec, Deadline deadline,
                                                     const std::stop_token& stop = {});
  // Errors: ABORTED, PEER_LOST for handles of two sequencers.
  absl::StatusOr<JobCall> RequestFor(const JobRequest& given, Deadline deadline,
                                     const std::stop_token& stop = {});
  // Returns the tensor with this name or handle.
  absl::StatusOr<v1::Tensor> Find(const std::string& name, Deadline deadline,
                                  const std::stop_token& stop = {});
  // A stop request ends the call with CANCELLED, and cancels the job in the background.
  absl::StatusOr<v1::Job> Submit(const JobRequest& given, Deadline deadline,
                                 const std::stop_token& stop);
  // Returns a handle whose waits take `job_timeout` plus a call's timeout by default.
  JobHandle HandleOf(const Id& job, absl::Duration job_timeout);
  // Calls `on_end`, which holds a Use, once and on any thread. A stop request cancels the job.
  void Run(const JobRequest& given, Milliseconds timeout, const std::stop_token& stop,
           Runs::OnEnd on_end);
  // Calls `move` with `options` on a thread of transfers_; Close waits for it. `purpose` names the
  // thread in errors.
  std::future<Result<TensorInfo>> Start(
      absl::string_view purpose, TransferOptions options,
      std::function<Result<TensorInfo>(const TransferOptions&)> move);

 private:
  absl::StatusOr<v1::Mesh> MeshOf(const std::string& mesh, const std::vector<int>& ranks,
                                  Deadline deadline, const std::stop_token& stop);
  struct WaitingRun {
    JobRequest given;
    Deadline deadline;
    std::stop_token stop;
    Runs::OnEnd on_end;
  };
  // Asks for the number of devices if the run needs it.
  void StartRun(WaitingRun run);
  // Starts the waiting runs until none is left.
  void StartRuns();
  // Returns the runs whose handles, if any, are of this sequencer.
  Runs* RunsOf(const std::string& sequencer);
  // Has CancelRuns cancel the job of a call, which has not ended. Thread-safe.
  void CancelRun(JobCall call);
  // Cancels jobs until none is left. On one thread, or on the loop if no thread could be started.
  void CancelRuns();
  Use MakeUse();  // with the lock
  absl::StatusOr<int> DeviceCount(Deadline deadline, const std::stop_token& stop);

  const std::string endpoint_;
  const ClientOptions options_;
  std::optional<Connection> connection_;
  std::optional<Loop> loop_;
  Background background_;
  TransferQueue transfers_{&background_};
  std::string session_;
  std::shared_ptr<ClientState> kept_;  // this, in a forked child
  std::stop_source cancels_late_;      // ends the calls of CancelRuns

  std::mutex mutex_;  // guards all below
  std::condition_variable unused_;
  bool closed_ = false, close_ended_ = false;
  int uses_ = 0;
  std::deque<JobCall> cancels_;  // of runs and submits, for CancelRuns
  bool cancelling_ = false;      // CancelRuns is running, or will
  // By the sequencer of the handles that their jobs have; empty: names alone.
  std::map<std::string, Runs> runs_;
  // In order. They wait for the number of devices, or for a run that does.
  std::deque<WaitingRun> waiting_runs_;
  bool starting_ = false;  // StartRuns is running, or will
  int device_count_ = 0;   // 0: not yet known; the configuration of a world never changes
};

// The error of a call for which Begin was null: `closed`, unless this is a forked child.
Status Refusal(Status closed = {StatusCode::kCancelled, "the client is closed; connect again"});

// The timeout of the job, or the default.
absl::Duration JobTimeout(const JobRequest& request);

template <typename Ask>
auto ClientState::Call(Ask ask) -> decltype(ToPublic(ask(connection()))) {
  const Use use = Begin();
  if (use == nullptr) return Refusal();
  return ToPublic(ask(connection()));
}

}  // namespace agmm
