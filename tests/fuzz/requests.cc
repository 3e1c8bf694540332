#include "tests/fuzz/requests.h"

#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "daemon/rpc/validate.h"
#include "daemon/rpc/validate_terms.h"
#include "kernels/schedule/problem.h"
#include "proto/convert/problem.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/product.h"

namespace agmm::fuzz {
namespace {

using Wide = __int128;

// What has passed converts, and no size of it overflows.
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
  // The last rank's is none of the larger ones.
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
void CheckValid(const v1::BeginAccessRequest& request) {
  if (request.has_put()) CheckPut(request.put());
}
void CheckValid(const v1::SubmitJobRequest& request) {
  const absl::StatusOr<Mesh> mesh = FromProto(request.mesh());
  FUZZ_CHECK(mesh.ok(), mesh.status().ToString());
  const absl::StatusOr<PlanOptions> options = FromProto(request.options());
  FUZZ_CHECK(options.ok(), options.status().ToString());
  const Wide nanos = Wide{request.timeout().seconds()} * 1000000000 + request.timeout().nanos();
  FUZZ_CHECK(nanos >= 0 && nanos <= Wide{kMaxTimeoutSeconds} * 1000000000, "timeout");
  CheckProduct(request.spec(), *mesh, {5, 3, 4}, *options);
}
// Of the rest it is enough that they are looked at.
void CheckValid(const google::protobuf::Message&) {}

template <typename Request>
void Check(absl::string_view data) {
  Request request;
  if (!request.ParseFromArray(data.data(), static_cast<int>(data.size()))) return;
  const absl::Status status = Validate(request);
  const std::string message(status.message());
  FUZZ_CHECK(status.ok() || absl::IsInvalidArgument(status), status.ToString());
  // Fit for a terminal and for a status on the wire.
  FUZZ_CHECK(message.size() < 4096, message);
  for (char c : message)
    FUZZ_CHECK(c == '\n' || absl::ascii_isprint(static_cast<unsigned char>(c)), message);
  Request again;
  FUZZ_CHECK(again.ParseFromString(request.SerializeAsString()), "does not parse again");
  FUZZ_CHECK(Validate(again) == status, message);
  if (status.ok()) CheckValid(request);
}

using CheckFn = void (*)(absl::string_view);
const std::map<absl::string_view, CheckFn>& Checks() {
#define AGMM_CHECK_OF(name) \
  { #name, &Check < v1::name> }
  static const auto* const checks = new std::map<absl::string_view, CheckFn>{
      AGMM_CHECK_OF(CreateTensorRequest), AGMM_CHECK_OF(DeleteTensorRequest),
      AGMM_CHECK_OF(GetTensorRequest),    AGMM_CHECK_OF(FillTensorRequest),
      AGMM_CHECK_OF(GetUploadRequest),    AGMM_CHECK_OF(AbortUploadRequest),
      AGMM_CHECK_OF(ReadTensorRequest),   AGMM_CHECK_OF(UploadRequest),
      AGMM_CHECK_OF(MapTensorRequest),    AGMM_CHECK_OF(SubmitJobRequest),
      AGMM_CHECK_OF(GetJobRequest),       AGMM_CHECK_OF(WaitJobRequest),
      AGMM_CHECK_OF(CancelJobRequest),    AGMM_CHECK_OF(ListJobsRequest),
      AGMM_CHECK_OF(WatchJobRequest),     AGMM_CHECK_OF(BeginAccessRequest),
      AGMM_CHECK_OF(EndAccessRequest),    AGMM_CHECK_OF(OpenedSessionRequest),
      AGMM_CHECK_OF(CloseSessionRequest), AGMM_CHECK_OF(PollJobRequest)};
#undef AGMM_CHECK_OF
  return *checks;
}

}  // namespace

void CheckRequest(absl::string_view message, const uint8_t* data, size_t size) {
  Checks().at(message)(Text(data, size));
}

}  // namespace agmm::fuzz
