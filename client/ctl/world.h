// The world that a verb asks.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/ctl/verbs.h"

namespace agmm {

// To the daemon that the flags name; connects with the first call.
absl::StatusOr<std::unique_ptr<Connection>> Connect(const Options& options);

// What the world is, if jobs can run in it. Errors: UNAVAILABLE saying who is missing.
absl::StatusOr<v1::GetStatusResponse> ReadyWorld(Connection* connection,
                                                 absl::Duration timeout = kShortCall);

// Of a transfer; `what` is what is missing now: "W is not written". A world that lost a daemon
// meanwhile is UNAVAILABLE to who must wait for it, and no job that failed.
absl::Status TransferError(const absl::Status& status, absl::string_view what);

// By world rank: the node.
std::vector<int> NodesOfWorld(const v1::GetStatusResponse& status);

// The tensor that people call so. Errors: NOT_FOUND.
absl::StatusOr<v1::Tensor> FindTensor(Connection* connection, const std::string& name);

}  // namespace agmm
