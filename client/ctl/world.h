// The world that a verb asks.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/ctl/verbs.h"

namespace agmm {

// To the daemon that the flags name; connects with the first call.
absl::StatusOr<std::unique_ptr<Connection>> Connect(const Options& options);

// What the world is, once jobs can run in it. Errors: UNAVAILABLE saying who is missing.
absl::StatusOr<v1::GetStatusResponse> ReadyWorld(Connection* connection);

// By world rank: the node.
std::vector<int> NodesOfWorld(const v1::GetStatusResponse& status);

// The tensor that people call so. Errors: NOT_FOUND.
absl::StatusOr<v1::Tensor> FindTensor(Connection* connection, const std::string& name);

}  // namespace agmm
