#include "client/library/job_handle.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/library/pending.h"
#include "client/library/to_public.h"

namespace agmm {
namespace {

Core* CoreOf(const std::shared_ptr<const JobHandleState>& state) {
  return state == nullptr ? nullptr : state->core.get();
}

Status Gone(uint64_t id) {
  if (id == 0) {
    return Status(StatusCode::kFailedPrecondition,
                  "this JobHandle stands for no job; take one from Client::Submit");
  }
  return Status(
      StatusCode::kFailedPrecondition,
      absl::StrFormat("the client of job %d is gone; keep it as long as its handles", id));
}

}  // namespace

absl::Time JobHandleState::WaitDeadline(Milliseconds timeout) const {
  if (timeout == Milliseconds::zero()) return absl::Now() + job_timeout + core->CallTimeout({});
  return absl::Now() + ToTimeout(timeout, {});
}

Result<JobInfo> JobHandle::Wait(Milliseconds timeout) const {
  const CoreUse use(CoreOf(state_));
  if (!use.ok()) return Gone(id_);
  const absl::StatusOr<v1::Job> job =
      state_->core->connection()->WaitJob({id_, state_->sequencer}, state_->WaitDeadline(timeout));
  if (!job.ok()) return ToPublic(job.status());
  return JobResult(*job);
}

void JobHandle::Then(std::function<void(const Result<JobInfo>&)> callback,
                     Milliseconds timeout) const {
  Core* const core = CoreOf(state_);
  if (core == nullptr || !core->Begin()) return callback(Gone(id_));
  StartWait(state_->core, {id_, state_->sequencer}, state_->WaitDeadline(timeout),
            std::move(callback));
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
  Core* const core = CoreOf(state_);
  if (core == nullptr || !core->Begin()) return on_end(Gone(id_));
  StartWatch(state_->core, {id_, state_->sequencer}, after_event, state_->WaitDeadline(timeout),
             std::move(on_event), std::move(on_end));
}

Result<JobInfo> JobHandle::Info(Milliseconds timeout) const {
  const CoreUse use(CoreOf(state_));
  if (!use.ok()) return Gone(id_);
  const absl::StatusOr<v1::Job> job = state_->core->connection()->GetJob(
      {id_, state_->sequencer}, state_->core->CallTimeout(timeout));
  if (!job.ok()) return ToPublic(job.status());
  return ToPublic(*job);
}

Status JobHandle::Cancel(Milliseconds timeout) const {
  const CoreUse use(CoreOf(state_));
  if (!use.ok()) return Gone(id_);
  return ToPublic(state_->core->connection()
                      ->CancelJob({id_, state_->sequencer}, state_->core->CallTimeout(timeout))
                      .status());
}

}  // namespace agmm
