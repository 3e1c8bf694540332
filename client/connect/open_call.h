// gRPC's context of a call, with the call's end.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>
#include <optional>

#include "kernels/base/deadline.h"

namespace agmm {

// Shared with the callback of a unary call. gRPC ends no call, not even one that is cancelled or
// late, while the connection takes no bytes, as that of a stopped daemon does. The thread that
// waits leaves such a call to its callback, which keeps this object. Thread-safe.
class OpenCall {
 public:
  explicit OpenCall(Deadline deadline);
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

  grpc::ClientContext* grpc() { return &context_; }
  void Cancel();

  // Called with the call's status, by its callback.
  void End(const grpc::Status& status);
  bool ended();
  // Waits for the call's end, until `limit`, or until shortly after its cancellation or deadline.
  // Returns its status; CANCELLED or DEADLINE_EXCEEDED if it has not ended.
  grpc::Status Await(Deadline limit = Deadline::Infinite());

 private:
  const Deadline late_;
  grpc::ClientContext context_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::optional<Deadline> cancelled_;  // the end of a wait
  std::optional<grpc::Status> end_;
};

}  // namespace agmm
