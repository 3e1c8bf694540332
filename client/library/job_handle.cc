#include <utility>

#include "absl/strings/str_format.h"
#include "client/connect/job_watch.h"
#include "client/library/client_state.h"
#include "client/trace/job_trace.h"
#include "kernels/base/deadline.h"

namespace agmm {

struct JobHandleState {
  Deadline WaitDeadline(Milliseconds timeout) const {
    return client->WaitDeadline(timeout, job_timeout);
  }

  std::shared_ptr<ClientState> client;
  absl::Duration job_timeout;
  Id id;
};

namespace {

ClientState::Use Begin(const std::shared_ptr<const JobHandleState>& state) {
  return state == nullptr ? nullptr : state->client->Begin();
}

Status Gone(uint64_t id) {
  if (id == 0) {
    return Status(StatusCode::kFailedPrecondition,
                  "this JobHandle stands for no job; take one from Client::Submit");
  }
  return Refusal(Status(
      StatusCode::kFailedPrecondition,
      absl::StrFormat(
          "the client of job %d was closed; keep it open as long as you use its handles", id)));
}

}  // namespace

JobHandle ClientState::HandleOf(const Id& job, absl::Duration job_timeout) {
  JobHandle handle;
  handle.state_ =
      std::make_shared<JobHandleState>(JobHandleState{shared_from_this(), job_timeout, job});
  handle.id_ = job.number;
  return handle;
}

Result<JobInfo> JobHandle::Wait(Milliseconds timeout) const {
  const ClientState::Use client = Begin(state_);
  if (client == nullptr) return Gone(id_);
  return JobResult(client->connection()->WaitJob(state_->id, state_->WaitDeadline(timeout)));
}

void JobHandle::Then(std::function<void(const Result<JobInfo>&)> callback,
                     Milliseconds timeout) const {
  Watch(/*on_event=*/nullptr, std::move(callback), /*after_event=*/0, timeout);
}

std::future<Result<JobInfo>> JobHandle::Done(Milliseconds timeout) const {
  auto promise = std::make_shared<std::promise<Result<JobInfo>>>();
  std::future<Result<JobInfo>> future = promise->get_future();
  Then([promise](const Result<JobInfo>& outcome) { promise->set_value(outcome); }, timeout);
  return future;
}

void JobHandle::Watch(std::function<bool(const JobEvent&)> on_event,
                      std::function<void(const Result<JobInfo>&)> on_end, int64_t after_event,
                      Milliseconds timeout) const {
  if (!on_end) on_end = [](const Result<JobInfo>&) {};
  const ClientState::Use client = Begin(state_);
  if (client == nullptr) return on_end(Gone(id_));
  OnJobEvent tell;
  if (on_event) tell = [on_event](const v1::JobEvent& event) { return on_event(ToPublic(event)); };
  WatchJob(client->connection(), client->loop(), state_->id, after_event,
           state_->WaitDeadline(timeout), std::move(tell),
           [client, on_end](const absl::StatusOr<v1::Job>& job) { on_end(JobResult(job)); });
}

Result<JobInfo> JobHandle::Info(Milliseconds timeout) const {
  const ClientState::Use client = Begin(state_);
  if (client == nullptr) return Gone(id_);
  return ToPublic(client->connection()->GetJob(state_->id, client->CallTimeout(timeout)));
}

Result<std::string> JobHandle::Trace(Milliseconds timeout) const {
  const ClientState::Use client = Begin(state_);
  if (client == nullptr) return Gone(id_);
  const Deadline deadline = Deadline::After(client->CallTimeout(timeout));
  const auto job =
      client->connection()->GetJobProgress(state_->id, /*step_times=*/true, deadline.Left());
  if (!job.ok()) return ToPublic(job.status());
  const auto status = client->connection()->GetStatus(deadline.Left());
  if (!status.ok()) return ToPublic(status.status());
  const auto trace = TraceOf({*job}, *status);
  if (!trace.ok()) return ToPublic(trace.status());
  return trace->dump();
}

Status JobHandle::Cancel(Milliseconds timeout) const {
  const ClientState::Use client = Begin(state_);
  if (client == nullptr) return Gone(id_);
  const auto job = client->connection()->CancelJob(state_->id, client->CallTimeout(timeout));
  return ToPublic(job.status());
}

}  // namespace agmm
