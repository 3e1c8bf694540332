// The world that the verbs ask.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/connect/connection.h"
#include "client/npy/npy.h"

namespace agmm {

// Returns the status of the world if it is ready to run jobs. Errors: UNAVAILABLE, naming the
// missing nodes.
absl::StatusOr<v1::GetStatusResponse> ReadyWorld(Connection* connection,
                                                 absl::Duration timeout = kShortCall);

// Returns the error of a transfer; `what` is its effect, such as "W was not written". ABORTED
// because the world lost a daemon becomes UNAVAILABLE, because the user waits for the world and
// tries again.
absl::Status TransferError(const absl::Status& status, absl::string_view what);

// Writes the contents of `tensor` to `file`, which is the one at `path`, and puts it in place;
// shows the progress on a terminal.
absl::StatusOr<v1::Tensor> FetchFile(Connection* connection, const v1::Tensor& tensor,
                                     const std::string& path, NpyWriter* file);

// Returns the node of each world rank.
std::vector<int> NodesOfWorld(const v1::GetStatusResponse& status);

// Returns the tensor called `name`: a name, or an id as "#12". Errors: NOT_FOUND.
absl::StatusOr<v1::Tensor> FindTensor(Connection* connection, const std::string& name);

}  // namespace agmm
