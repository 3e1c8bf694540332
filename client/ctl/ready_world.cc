#include "client/ctl/world.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/arguments.h"
#include "kernels/base/status.h"
#include "proto/convert/status.h"

namespace agmm {

absl::StatusOr<std::unique_ptr<Connection>> Connect(const Options& options) {
  AGMM_ASSIGN_OR_RETURN(Endpoint endpoint, ResolveEndpoint(options.endpoint));
  return std::make_unique<Connection>(std::move(endpoint));
}

absl::StatusOr<v1::GetStatusResponse> ReadyWorld(Connection* connection, absl::Duration timeout) {
  AGMM_ASSIGN_OR_RETURN(v1::GetStatusResponse status, connection->GetStatus(timeout));
  if (status.ready()) return status;
  return WithReason(
      absl::UnavailableError(absl::StartsWith(status.reason(), "the world")
                                 ? status.reason()
                                 : absl::StrCat("the world is not ready: ", status.reason())),
      kReasonWorldIncomplete);
}

absl::Status TransferError(const absl::Status& status, absl::string_view what) {
  if (!absl::IsAborted(status) || ReasonOf(status) != kReasonPeerLost) return status;
  return WithReason(
      absl::UnavailableError(absl::StrCat(what, ": ", status.message(),
                                          " (`agmmctl status --ready` waits for the world)")),
      kReasonPeerLost);
}

std::vector<int> NodesOfWorld(const v1::GetStatusResponse& status) {
  std::vector<int> nodes;
  for (const v1::NodeStatus& node : status.nodes())
    nodes.resize(nodes.size() + node.devices_size(), node.index());
  return nodes;
}

absl::StatusOr<v1::Tensor> FindTensor(Connection* connection, const std::string& name) {
  AGMM_ASSIGN_OR_RETURN(const v1::TensorRef ref, ParseTensorRef(name));
  return connection->GetTensor(ref);
}

}  // namespace agmm
