#include "client/connect/open_call.h"

#include <algorithm>

#include "absl/time/time.h"
#include "proto/convert/grpc_call.h"

namespace agmm {
namespace {

// Ends a wait for a call that was cancelled or is late. Longer than gRPC takes to end a call whose
// connection is not blocked.
constexpr absl::Duration kGrace = absl::Milliseconds(200);

}  // namespace

OpenCall::OpenCall(Deadline deadline)
    : late_(deadline == Deadline::Infinite() ? deadline
                                             : Deadline::After(deadline.Left() + kGrace)) {
  context_.set_deadline(ToGrpc(deadline));
}

void OpenCall::Cancel() {
  context_.TryCancel();
  std::lock_guard lock(mutex_);
  if (!cancelled_.has_value()) cancelled_ = Deadline::After(kGrace);
  changed_.notify_all();
}

void OpenCall::End(const grpc::Status& status) {
  std::lock_guard lock(mutex_);
  end_ = status;
  changed_.notify_all();
}

bool OpenCall::ended() {
  std::lock_guard lock(mutex_);
  return end_.has_value();
}

grpc::Status OpenCall::Await(Deadline limit) {
  std::unique_lock lock(mutex_);
  while (!end_.has_value()) {
    const Deadline until = std::min({limit, late_, cancelled_.value_or(late_)});
    if (until.HasPassed()) {
      return cancelled_.has_value()
                 ? grpc::Status::CANCELLED
                 : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the connection is blocked");
    }
    changed_.wait_until(lock, until.time_point());
  }
  return *end_;
}

}  // namespace agmm
