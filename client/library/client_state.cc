#include "client/library/client_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

// Longest timeout, because later times would overflow.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

}  // namespace

Status Refusal(Status closed) { return Forked() ? ForkedError() : closed; }

absl::Duration ToTimeout(Milliseconds given, Milliseconds otherwise) {
  const Milliseconds chosen = given == Milliseconds::zero() ? otherwise : given;
  return std::clamp(absl::FromChrono(chosen), -kLongest, kLongest);
}

ClientState::ClientState(Endpoint endpoint, ClientOptions options) : options_(std::move(options)) {
  StartGrpc();
  connection_.emplace(std::move(endpoint));
  loop_.emplace("the client's callbacks");
  runs_.emplace(&*connection_, &*loop_);
}

absl::Status ClientState::Open() {
  AGMM_RETURN_IF_ERROR(loop_->status());
  const absl::Duration timeout = CallTimeout({});
  AGMM_RETURN_IF_ERROR(connection_->GetStatus(timeout).status());
  if (options_.session) {
    AGMM_ASSIGN_OR_RETURN(session_, connection_->OpenSession(timeout));
  }
  return absl::OkStatus();
}

void ClientState::Close() {
  if (Forked()) {
    kept_ = shared_from_this();
    return;
  }
  if (loop_->OnLoop()) {
    FailWith(Status(StatusCode::kFailedPrecondition,
                    "an agmm::Client was destroyed in one of its own callbacks; destroy it on "
                    "another thread"));
  }
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  connection_->Interrupt();
  loop_->RunTimersNow();
  {
    std::unique_lock lock(mutex_);
    unused_.wait(lock, [this] { return uses_ == 0; });
  }
  loop_.reset();
  runs_.reset();
  connection_.reset();
}

ClientState::Use ClientState::Begin() {
  if (Forked()) return nullptr;
  std::lock_guard lock(mutex_);
  if (closed_) return nullptr;
  ++uses_;
  return Use(this, [self = shared_from_this()](ClientState*) {
    std::lock_guard lock(self->mutex_);
    if (--self->uses_ == 0) self->unused_.notify_all();
  });
}

absl::Duration ClientState::CallTimeout(Milliseconds given) const {
  return ToTimeout(given, options_.call_timeout);
}

absl::Duration ClientState::TransferTimeout(Milliseconds given) const {
  return ToTimeout(given, options_.transfer_timeout);
}

Deadline ClientState::WaitDeadline(Milliseconds given, absl::Duration job_timeout) const {
  const bool is_given = given != Milliseconds::zero();
  return Deadline::After(is_given ? ToTimeout(given, {}) : job_timeout + CallTimeout({}));
}

absl::StatusOr<v1::Mesh> ClientState::MeshOf(const std::string& mesh, const std::vector<int>& ranks,
                                             absl::Duration timeout) {
  if (!mesh.empty()) return MeshFromText(mesh, ranks);
  if (!ranks.empty()) return MeshFromText(absl::StrCat("x=", ranks.size()), ranks);
  AGMM_ASSIGN_OR_RETURN(const int count, DeviceCount(timeout));
  return MeshFromText(absl::StrCat("x=", count), {});
}

absl::StatusOr<int> ClientState::DeviceCount(absl::Duration timeout) {
  {
    std::lock_guard lock(mutex_);
    if (device_count_ > 0) return device_count_;
  }
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection_->GetStatus(timeout));
  if (!status.ready())
    return WithReason(absl::UnavailableError(status.reason()), kReasonWorldIncomplete);
  std::lock_guard lock(mutex_);
  device_count_ = 0;
  for (const v1::NodeStatus& node : status.nodes()) device_count_ += node.devices_size();
  return device_count_;
}

}  // namespace agmm
