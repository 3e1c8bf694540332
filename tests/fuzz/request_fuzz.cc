// Properties of every request that can be parsed, and of every request that passes Validate.
#include <cmath>

#include "absl/strings/ascii.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/rpc/validate.h"
#include "kernels/base/tensor_name.h"
#include "kernels/schedule/problem.h"
#include "proto/convert/plan_inputs.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/product.h"

namespace agmm::fuzz {
namespace {

using Wide = __int128;

// A valid request converts, and none of its sizes overflows.
void CheckSpec(const v1::TensorSpec& spec) {
  const absl::StatusOr<PlacedTensor> placed = FromProto(spec);
  FUZZ_CHECK(placed.ok(), placed.status().ToString());
  const Mesh& mesh = placed->mesh;
  const Tensor& tensor = placed->tensor;
  FUZZ_CHECK(mesh.size() >= 1 && mesh.size() <= kMaxRanks, mesh.ToString());
  const Wide bytes = Wide{tensor.rows} * tensor.cols * SizeOf(tensor.dtype);
  FUZZ_CHECK(bytes >= 1 && bytes <= kMaxTensorBytes, spec.DebugString());
  const Wide pitch = ShardPitchBytes(mesh, tensor);
  const Wide shard = ShardBytes(mesh, tensor);
  const Block largest = ShardBlock(mesh, tensor, 0, 0);
  FUZZ_CHECK(shard == pitch * largest.rows.size() && shard >= 0, spec.DebugString());
  FUZZ_CHECK(pitch >= Wide{largest.cols.size()} * SizeOf(tensor.dtype), spec.DebugString());
  FUZZ_CHECK(shard * mesh.size() >= bytes, spec.DebugString());
  // The last rank does not have one of the larger shards.
  const Block last = ShardBlock(mesh, tensor, 0, mesh.size() - 1);
  FUZZ_CHECK(last.rows.end <= tensor.rows && last.cols.end <= tensor.cols, spec.DebugString());
  const absl::StatusOr<PlacedTensor> again = FromProto(ToProto(mesh, tensor));
  FUZZ_CHECK(again.ok() && again->mesh == mesh && again->tensor == tensor, spec.DebugString());
}

void CheckPut(const v1::CreateTensorRequest& request) {
  FUZZ_CHECK(request.name().size() <= kMaxNameBytes, request.name());
  CheckSpec(request.spec());
}

void CheckValid(const v1::CreateTensorRequest& request) { CheckPut(request); }
void CheckValid(const v1::FillTensorRequest& request) {
  if (request.has_put()) CheckPut(request.put());
  FUZZ_CHECK(request.has_put() || request.tensor_id() != 0, "no target");
  FUZZ_CHECK(
      request.fill().kind() != v1::Fill::KIND_CONSTANT || std::isfinite(request.fill().value()),
      "no number");
}
void CheckValid(const v1::UploadRequest& request) {
  if (request.begin().has_put()) CheckPut(request.begin().put());
  if (!request.has_chunk()) return;
  const v1::UploadChunk& chunk = request.chunk();
  const Wide end = Wide{chunk.offset_bytes()} + static_cast<Wide>(chunk.data().size());
  FUZZ_CHECK(chunk.offset_bytes() >= 0 && end > 0 && end <= kMaxTensorBytes, "out of bounds");
}
void CheckValid(const v1::BeginLeaseRequest& request) {
  if (request.has_put()) CheckPut(request.put());
}
void CheckValid(const v1::SubmitJobRequest& request) {
  const absl::StatusOr<Mesh> mesh = FromProto(request.mesh());
  FUZZ_CHECK(mesh.ok(), mesh.status().ToString());
  const Wide nanos = Wide{request.timeout().seconds()} * 1000000000 + request.timeout().nanos();
  FUZZ_CHECK(nanos >= 0 && nanos <= Wide{kMaxTimeoutSeconds} * 1000000000, "timeout");
  CheckProduct(request.spec(), *mesh, {5, 3, 4}, FromProto(request.options()));
}
// For the other requests it is enough that Validate returns.
void CheckValid(const google::protobuf::Message&) {}

template <typename Request>
void Check(absl::string_view data) {
  Request request;
  if (!request.ParseFromArray(data.data(), static_cast<int>(data.size()))) return;
  const absl::Status status = Validate(request);
  const std::string message(status.message());
  FUZZ_CHECK(status.ok() || absl::IsInvalidArgument(status), status.ToString());
  // The message suits a terminal and a status on the wire.
  FUZZ_CHECK(message.size() < 4096, message);
  for (char c : message)
    FUZZ_CHECK(c == '\n' || absl::ascii_isprint(static_cast<unsigned char>(c)), message);
  Request again;
  FUZZ_CHECK(again.ParseFromString(request.SerializeAsString()), "does not parse again");
  FUZZ_CHECK(Validate(again) == status, message);
  if (status.ok()) CheckValid(request);
}

// Adds a target of the message's name.
template <typename... Requests>
bool AddAll() {
  return (AddTarget(Requests::descriptor()->name(), Check<Requests>) && ...);
}

[[maybe_unused]] const bool kAdded =
    AddAll<v1::CreateTensorRequest, v1::DeleteTensorRequest, v1::GetTensorRequest,
           v1::FillTensorRequest, v1::AbortUploadRequest, v1::ReadTensorRequest, v1::UploadRequest,
           v1::MapTensorRequest, v1::SubmitJobRequest, v1::GetJobRequest, v1::WaitJobRequest,
           v1::CancelJobRequest, v1::ListJobsRequest, v1::WatchJobRequest, v1::BeginLeaseRequest,
           v1::EndLeaseRequest, v1::OpenSessionRequest, v1::ListSessionsRequest,
           v1::OpenedSessionRequest, v1::CloseSessionRequest>();

}  // namespace
}  // namespace agmm::fuzz
