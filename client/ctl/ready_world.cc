#include "client/ctl/ready_world.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/arguments.h"
#include "client/ctl/terminal_line.h"
#include "client/files/matrix_transfer.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {

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
  if (absl::IsUnavailable(status) && ReasonOf(status).empty())
    return absl::UnavailableError(absl::StrCat(what, ": ", status.message()));
  if (!absl::IsAborted(status) || ReasonOf(status) != kReasonPeerLost) return status;
  return WithReason(absl::UnavailableError(absl::StrCat(what, ": ", status.message())),
                    kReasonPeerLost);
}

absl::StatusOr<v1::Tensor> FetchFile(Connection* connection, const v1::Tensor& tensor,
                                     const std::string& path, NpyWriter* file) {
  v1::TensorRef ref;
  ref.set_tensor_id(tensor.tensor_id());
  absl::StatusOr<v1::Tensor> fetched;
  {
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(tensor.spec().dtype()));
    ProgressLine line(path, tensor.spec().rows() * tensor.spec().cols() * SizeOf(dtype));
    fetched = DownloadFile(connection, ref, file, line.progress(), tensor.sequencer());
  }
  AGMM_RETURN_IF_ERROR(TransferError(fetched.status(), absl::StrCat(path, " was not written")));
  AGMM_RETURN_IF_ERROR(file->Commit());
  return fetched;
}

std::vector<int> RanksOfFirstKind(const v1::GetStatusResponse& status) {
  std::vector<int> ranks;
  const v1::DeviceStatus* first = nullptr;
  int rank = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      if (first == nullptr) first = &device;
      if (device.kind() == first->kind()) ranks.push_back(rank);
      ++rank;
    }
  }
  return ranks;
}

absl::StatusOr<Mesh> MeshOfWorld(Connection* connection, const std::string& mesh,
                                 const std::string& ranks) {
  std::vector<int> others;
  if (mesh.empty() && ranks.empty()) {
    AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, ReadyWorld(connection));
    others = RanksOfFirstKind(status);
  }
  return MeshOfFlags(mesh, ranks, others);
}

absl::StatusOr<v1::Tensor> FindTensor(Connection* connection, const std::string& name) {
  AGMM_ASSIGN_OR_RETURN(const NamedTensor named, ParseTensorRef(name));
  return connection->GetTensor(named.ref, kShortCall, named.sequencer);
}

}  // namespace agmm
