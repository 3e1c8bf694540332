// The caller of a call, and the ids that travel with it. Made once per call and passed along.
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
  // `member`: the caller is a daemon of the world, for itself or for the principal.
  // `former_member`: the caller claims this without an open stream to the sequencer; it may have
  // had one.
  bool member = false, former_member = false;
  std::string request_id;  // for logs; made here if the caller sent none
  Deadline deadline;
  std::string traceparent;  // W3C trace context, passed on unchanged
  std::string session;      // empty: none
  std::string sequencer;    // that assigned the ids in the request; empty: the current one
  // Cancelled when the caller disconnects, so that work on its behalf can stop. Shared by copies.
  std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>();
};

// The answer to an asynchronous call; runs exactly once, on any thread.
template <typename T>
using Reply = std::function<void(absl::StatusOr<T>)>;

}  // namespace agmm
