// The caller of a call, its deadline and its names. Made once per call and passed along.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/cancel.h"
#include "kernels/base/deadline.h"

namespace agmm {

struct CallContext {
  std::string principal;  // "uid:1000" over a unix socket, else the peer's address
  // A daemon of the world calls, for itself or for the principal; or one that says so, and may have
  // been until its stream to the sequencer ended.
  bool member = false, former_member = false;
  std::string request_id;  // for logs; made here if the caller sent none
  Deadline deadline;
  std::string traceparent;  // W3C trace context, passed on unchanged
  std::string session;      // empty: none
  std::string sequencer;    // that gave the ids in the request; empty: whichever is there
  // Cancelled when the caller goes away, so that work on its behalf may stop. Shared by copies.
  std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>();
};

// The answer to an asynchronous call; runs exactly once, on any thread.
template <typename T>
using Reply = std::function<void(absl::StatusOr<T>)>;

}  // namespace agmm
