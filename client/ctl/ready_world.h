// The world that the verbs ask.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/connect/connection.h"
#include "client/files/npy.h"
#include "client/trace/world_view.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// Returns the status of the world if it is ready to run jobs. Errors: UNAVAILABLE, naming the
// missing nodes.
absl::StatusOr<v1::GetStatusResponse> ReadyWorld(Connection* connection,
                                                 absl::Duration timeout = kShortCall);

// Returns the error of a transfer; `what` is its effect, such as "W was not written". ABORTED, if
// the world lost a daemon, becomes UNAVAILABLE, because the user can wait for the world and retry.
absl::Status TransferError(const absl::Status& status, absl::string_view what);

// Writes the contents of `tensor` to `file`, which was opened for `path`, and commits it; shows the
// progress on a terminal.
absl::StatusOr<v1::Tensor> FetchFile(Connection* connection, const v1::Tensor& tensor,
                                     const std::string& path, NpyWriter* file);

// Returns the world ranks whose devices are of rank 0's kind, in order: those of the default mesh.
std::vector<int> RanksOfFirstKind(const v1::GetStatusResponse& status);

// Parses --mesh and --ranks. Without both, the mesh is one axis over the ranks of rank 0's kind,
// for which the daemon is asked.
absl::StatusOr<Mesh> MeshOfWorld(Connection* connection, const std::string& mesh,
                                 const std::string& ranks);

// Returns the tensor called `name`: a name, an id as "#12", or a handle. Errors: NOT_FOUND; ABORTED
// for a handle from before a restart of node 0's daemon.
absl::StatusOr<v1::Tensor> FindTensor(Connection* connection, const std::string& name);

}  // namespace agmm
