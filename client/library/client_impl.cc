#include "client/library/core.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

// Beyond it, times overflow somewhere.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

// gRPC stays for the life of the process: when its last user lets go, its shutdown may wait 10 s
// for a thread of its own.
void HoldGrpc() {
  static const bool held = [] {
    grpc_init();
    return true;
  }();
  (void)held;
}

}  // namespace

Status ClientGone() {
  return Status(StatusCode::kCancelled, "the client is being destroyed; end its calls first");
}

absl::Duration ToTimeout(Milliseconds given, Milliseconds otherwise) {
  const Milliseconds chosen = given == Milliseconds::zero() ? otherwise : given;
  return std::min(absl::FromChrono(chosen), kLongest);
}

Core::Core(Endpoint endpoint, ClientOptions options) : options_(std::move(options)) {
  HoldGrpc();
  connection_.emplace(std::move(endpoint));
  loop_.emplace();
}

absl::Status Core::Open() {
  const absl::Duration timeout = CallTimeout({});
  AGMM_RETURN_IF_ERROR(connection_->GetStatus(timeout).status());
  if (options_.session) {
    AGMM_ASSIGN_OR_RETURN(session_, connection_->OpenSession(timeout));
  }
  return absl::OkStatus();
}

void Core::Close() {
  if (loop_->OnThisThread()) {
    FailWith(Status(StatusCode::kFailedPrecondition,
                    "an agmm::Client was destroyed in one of its own callbacks; let another thread "
                    "destroy it"));
  }
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  connection_->Interrupt();
  loop_->Hurry();
  {
    std::unique_lock lock(mutex_);
    unused_.wait(lock, [this] { return uses_ == 0; });
  }
  loop_.reset();
  connection_.reset();
}

bool Core::Begin() {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  ++uses_;
  return true;
}

void Core::End() {
  std::lock_guard lock(mutex_);
  if (--uses_ == 0) unused_.notify_all();
}

absl::Duration Core::CallTimeout(Milliseconds given) const {
  return ToTimeout(given, options_.call_timeout);
}

absl::Duration Core::TransferTimeout(Milliseconds given) const {
  return ToTimeout(given, options_.transfer_timeout);
}

absl::StatusOr<v1::Mesh> Core::MeshOf(const std::string& mesh, const std::vector<int>& ranks,
                                      absl::Duration timeout) {
  if (!mesh.empty()) return MeshFromText(mesh, ranks);
  if (!ranks.empty()) return MeshFromText(absl::StrCat("x=", ranks.size()), ranks);
  AGMM_ASSIGN_OR_RETURN(const int count, DeviceCount(timeout));
  return MeshFromText(absl::StrCat("x=", count), {});
}

absl::StatusOr<int> Core::DeviceCount(absl::Duration timeout) {
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
