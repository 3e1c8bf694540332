#include "daemon/rpc/validate.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/machine.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "agmm/v1/tuning.pb.h"
#include "kernels/base/status.h"
#include "kernels/base/tensor_name.h"
#include "kernels/base/utf8.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/problem.h"
#include "proto/convert/blocks.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/tuning_messages.h"
#include "proto/limits.h"

namespace agmm {
namespace {

constexpr size_t kMaxIdBytes = 256;
constexpr size_t kMaxNotationBytes = 1024;
constexpr int kMaxMeshAxes = 32;
constexpr size_t kMaxAxisNameBytes = 32;
constexpr int kProductTensors = 3, kCollectiveTensors = 2;
// The smallest element. The stream, which knows the tensor's dtype, checks its own.
constexpr int64_t kElementBytes = 2;

// In all checks, `field` is the subject of the error. Values that people write go by words that the
// users of every client know, because flags, agmm.h and the Python package name them differently;
// other values go by their field's path.
template <typename... Args>
absl::Status Wrong(absl::string_view field, const absl::FormatSpec<Args...>& what,
                   const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", absl::StrFormat(what, args...)));
}

absl::Status CheckLength(absl::string_view field, absl::string_view text, size_t bound) {
  if (text.size() <= bound) return absl::OkStatus();
  return Wrong(field, "has %d bytes; at most %d are taken; use a shorter one", text.size(), bound);
}

absl::Status CheckGiven(absl::string_view field, absl::string_view text) {
  return text.empty() ? Wrong(field, "is empty; set it") : absl::OkStatus();
}

// Checks an id made by a client: printable ASCII, so that logs and headers can show it.
absl::Status CheckId(absl::string_view field, absl::string_view id) {
  AGMM_RETURN_IF_ERROR(CheckLength(field, id, kMaxIdBytes));
  for (size_t i = 0; i < id.size(); ++i) {
    if (absl::ascii_isprint(static_cast<unsigned char>(id[i]))) continue;
    return Wrong(field, "has byte 0x%02x at %d; use printable ASCII, such as hex digits",
                 static_cast<unsigned char>(id[i]), i);
  }
  return absl::OkStatus();
}

absl::Status CheckIdGiven(absl::string_view field, absl::string_view id) {
  AGMM_RETURN_IF_ERROR(CheckGiven(field, id));
  return CheckId(field, id);
}

// Checks an id made by a daemon.
absl::Status CheckIdGiven(absl::string_view field, uint64_t id) {
  return id == 0 ? Wrong(field, "is 0; ids begin at 1") : absl::OkStatus();
}

// Checks the name of a client's program, which people read.
absl::Status CheckProgram(absl::string_view program) {
  AGMM_RETURN_IF_ERROR(CheckLength("program", program, kMaxProgramBytes));
  for (size_t at = 0; at < program.size();) {
    const size_t begin = at;
    uint32_t code = 0;
    if (!NextCodePoint(program, &at, &code))
      return Wrong("program", "is not UTF-8 from byte %d on; encode it as UTF-8", begin);
    if (IsControl(code)) {
      return Wrong("program", "has the control character U+%04X at byte %d; leave it out", code,
                   begin);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBetween(absl::string_view field, int64_t value, int64_t min, int64_t max,
                          absl::string_view next) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Wrong(field, "is %d, outside [%d, %d]; %s", value, min, max, next);
}

absl::Status CheckPageSize(int page_size) {
  return CheckBetween("page_size", page_size, 0, kMaxPage, "ask for the next page for more");
}

// `tensor`: "the tensor", "the tensor of operand B".
absl::Status CheckRef(absl::string_view tensor, const v1::TensorRef& ref) {
  switch (ref.ref_case()) {
    case v1::TensorRef::kTensorId:
      return CheckIdGiven(absl::StrCat("the id of ", tensor), ref.tensor_id());
    case v1::TensorRef::kName:
      return CheckTensorName(absl::StrCat("the name of ", tensor), ref.name());
    case v1::TensorRef::REF_NOT_SET: break;
  }
  return Wrong(tensor, "is not given; give its name or its id");
}

absl::Status CheckAxis(const v1::MeshAxis& axis, int position) {
  const std::string here = absl::StrFormat("axis %d of the mesh", position + 1);
  AGMM_RETURN_IF_ERROR(
      CheckLength(absl::StrCat("the name of ", here), axis.name(), kMaxAxisNameBytes));
  if (axis.name().empty() || !absl::c_all_of(axis.name(), [](char c) {
        return absl::ascii_isalpha(static_cast<unsigned char>(c));
      })) {
    return Wrong(here, "has a name that is empty or not of letters only; use one such as x or tp");
  }
  return CheckBetween(absl::StrFormat("the size of axis %s of the mesh", axis.name()), axis.size(),
                      1, kMaxRanks, "give the number of ranks along it");
}

absl::Status CheckMesh(const v1::Mesh& mesh) {
  constexpr absl::string_view kMesh = "the mesh";
  AGMM_RETURN_IF_ERROR(CheckBetween("the number of axes of the mesh", mesh.axes_size(), 1,
                                    kMaxMeshAxes, "give the axes, such as x=4"));
  std::vector<absl::string_view> names;
  int64_t size = 1;
  for (int i = 0; i < mesh.axes_size(); ++i) {
    const v1::MeshAxis& axis = mesh.axes(i);
    AGMM_RETURN_IF_ERROR(CheckAxis(axis, i));
    if (absl::c_linear_search(names, axis.name())) {
      return Wrong(kMesh, "has two axes that are called %s; give each its own name", axis.name());
    }
    names.push_back(axis.name());
    size *= axis.size();
    if (size > kMaxRanks) {
      return Wrong(kMesh,
                   "has %d ranks up to axis %s; at most %d can be planned for; make it smaller",
                   size, axis.name(), kMaxRanks);
    }
  }
  if (mesh.ranks().empty()) return absl::OkStatus();
  if (mesh.ranks_size() != size) {
    return Wrong(kMesh, "has %d ranks and lists %d; list one for each, or none", size,
                 mesh.ranks_size());
  }
  std::vector<int> ranks(mesh.ranks().begin(), mesh.ranks().end());
  absl::c_sort(ranks);
  if (ranks.front() < 0) return Wrong(kMesh, "lists rank %d; ranks begin at 0", ranks.front());
  if (const auto twice = absl::c_adjacent_find(ranks); twice != ranks.end())
    return Wrong(kMesh, "lists rank %d twice; list each once", *twice);
  return absl::OkStatus();
}

absl::Status CheckSpec(const v1::TensorSpec& spec) {
  for (auto [name, size] : {std::pair{"rows", spec.rows()}, {"columns", spec.cols()}}) {
    AGMM_RETURN_IF_ERROR(CheckBetween(absl::StrCat("the number of ", name), size, 1, kMaxDimension,
                                      "a matrix has at least one row and one column"));
  }
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(spec.dtype()));
  // Both factors are at most kMaxDimension: no overflow.
  const int64_t bytes = spec.rows() * spec.cols() * SizeOf(dtype);
  if (bytes > kMaxTensorBytes) {
    return Wrong("the tensor", "is %d x %d, %d bytes; at most %d are taken; split it", spec.rows(),
                 spec.cols(), bytes, kMaxTensorBytes);
  }
  if (spec.sharding().empty()) return Wrong("the sharding", "is empty; give one such as [M_x, K]");
  AGMM_RETURN_IF_ERROR(CheckLength("the sharding", spec.sharding(), kMaxNotationBytes));
  AGMM_RETURN_IF_ERROR(CheckMesh(spec.mesh()));
  // The notation's parser says what is wrong with a sharding.
  return FromProto(spec).status();
}

absl::Status CheckOptions(const v1::PlanOptions& options) {
  // The planner checks which names exist.
  AGMM_RETURN_IF_ERROR(CheckId("the algorithm", options.algorithm()));
  AGMM_RETURN_IF_ERROR(CheckLength("the split", options.split(), kMaxNotationBytes));
  AGMM_RETURN_IF_ERROR(CheckBetween("the number of shards in the workspace",
                                    options.workspace_shard_count(), 0, kMaxChunks,
                                    "give 0 to have room for all"));
  for (const auto& [chunks, count] :
       {std::pair("the number of chunks a shard", options.chunk_count()),
        {"the number of chunks along K", options.k_chunk_count()}}) {
    AGMM_RETURN_IF_ERROR(CheckBetween(chunks, count, 0, kMaxChunks, "give 0 to have it chosen"));
  }
  return Annotate(PartialsOf(options.partials()).status(), "the type of partial sums");
}

// 0 is the default.
absl::Status CheckTimeout(absl::string_view field, const google::protobuf::Duration& timeout) {
  const int64_t seconds = timeout.seconds(), nanos = timeout.nanos();
  const bool whole = nanos >= 0 && nanos < 1000000000;
  if (whole && seconds >= 0 &&
      (seconds < kMaxTimeoutSeconds || (seconds == kMaxTimeoutSeconds && nanos == 0))) {
    return absl::OkStatus();
  }
  return Wrong(field, "is %d s and %d ns; at most %d s are taken, and 0 stands for the default",
               seconds, nanos, kMaxTimeoutSeconds);
}

}  // namespace

// Also used for a put or a fill.
template <>
absl::Status Validate(const v1::CreateTensorRequest& request) {
  if (!request.name().empty())
    AGMM_RETURN_IF_ERROR(CheckTensorName("the name of the tensor", request.name()));
  AGMM_RETURN_IF_ERROR(CheckId("the id of the session", request.session_id()));
  AGMM_RETURN_IF_ERROR(CheckId("the id of the request", request.request_id()));
  return CheckSpec(request.spec());
}

namespace {

absl::Status NoTarget(absl::string_view field) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has no target; set tensor_id, or put for a tensor by its name"));
}

absl::Status CheckBegin(const v1::BeginUpload& begin) {
  AGMM_RETURN_IF_ERROR(CheckIdGiven("begin.upload_id", begin.upload_id()));
  switch (begin.target_case()) {
    case v1::BeginUpload::kTensorId: return CheckIdGiven("the id of the tensor", begin.tensor_id());
    case v1::BeginUpload::kPut: return Validate(begin.put());
    case v1::BeginUpload::TARGET_NOT_SET: break;
  }
  return NoTarget("begin");
}

absl::Status CheckChunk(const v1::UploadChunk& chunk) {
  const int64_t size = static_cast<int64_t>(chunk.data().size());
  AGMM_RETURN_IF_ERROR(CheckBetween("chunk.data", size, 1, kMaxPieceBytes,
                                    "split the data into messages of that size"));
  AGMM_RETURN_IF_ERROR(CheckBetween("chunk.offset_bytes", chunk.offset_bytes(), 0,
                                    kMaxTensorBytes - size, "begin where the last chunk ended"));
  if (chunk.offset_bytes() % kElementBytes == 0 && size % kElementBytes == 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "chunk of %d bytes at offset_bytes %d cuts an element in two; send whole ones", size,
      chunk.offset_bytes()));
}

absl::Status CheckOperands(const v1::SubmitJobRequest& request) {
  if (request.tensors_size() > 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the job has %d tensors by operand and %d in the order of the spec; give "
                        "one of the two",
                        request.operands_size(), request.tensors_size()));
  }
  std::vector<absl::string_view> names;
  for (const v1::OperandTensor& operand : request.operands()) names.push_back(operand.name());
  AGMM_RETURN_IF_ERROR(CheckOperandNames(names));
  for (const v1::OperandTensor& operand : request.operands()) {
    AGMM_RETURN_IF_ERROR(
        CheckRef(absl::StrCat("the tensor of operand ", operand.name()), operand.tensor()));
  }
  return absl::OkStatus();
}

// In the form of tensors without names.
absl::Status CheckTensors(const v1::SubmitJobRequest& request) {
  if (request.tensors_size() != kProductTensors && request.tensors_size() != kCollectiveTensors) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the job has %d tensors; a product has %d and a collective %d: give one "
                        "for each operand, in the order of the spec",
                        request.tensors_size(), kProductTensors, kCollectiveTensors));
  }
  for (int i = 0; i < request.tensors_size(); ++i)
    AGMM_RETURN_IF_ERROR(CheckRef(absl::StrFormat("the tensor of operand %d of the spec", i + 1),
                                  request.tensors(i)));
  return absl::OkStatus();
}

}  // namespace

// Status and sessions.

template <>
absl::Status Validate(const v1::GetStatusRequest&) {
  return absl::OkStatus();
}

template <>
absl::Status Validate(const v1::OpenSessionRequest& request) {
  return CheckProgram(request.program());
}

template <>
absl::Status Validate(const v1::ListSessionsRequest& request) {
  return CheckPageSize(request.page_size());
}

// Tensors.

template <>
absl::Status Validate(const v1::DeleteTensorRequest& request) {
  return CheckIdGiven("the id of the tensor", request.tensor_id());
}

template <>
absl::Status Validate(const v1::ListTensorsRequest& request) {
  return CheckPageSize(request.page_size());
}

template <>
absl::Status Validate(const v1::GetTensorRequest& request) {
  return CheckRef("the tensor", request.tensor());
}

template <>
absl::Status Validate(const v1::FillTensorRequest& request) {
  switch (request.target_case()) {
    case v1::FillTensorRequest::kTensorId:
      AGMM_RETURN_IF_ERROR(CheckIdGiven("the id of the tensor", request.tensor_id()));
      break;
    case v1::FillTensorRequest::kPut: AGMM_RETURN_IF_ERROR(Validate(request.put())); break;
    case v1::FillTensorRequest::TARGET_NOT_SET: return NoTarget("the request");
  }
  const v1::Fill& fill = request.fill();
  if (!v1::Fill::Kind_IsValid(fill.kind()) || fill.kind() == v1::Fill::KIND_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the kind of fill is %d; use uniform, integers or constant", fill.kind()));
  }
  if (fill.kind() == v1::Fill::KIND_CONSTANT && !std::isfinite(fill.value())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the value of the fill is %f; a constant is a finite number", fill.value()));
  }
  return absl::OkStatus();
}

template <>
absl::Status Validate(const v1::AbortUploadRequest& request) {
  return CheckIdGiven("upload_id", request.upload_id());
}

template <>
absl::Status Validate(const v1::ReadTensorRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckRef("the tensor", request.tensor()));
  return CheckBetween("offset_bytes", request.offset_bytes(), 0, kMaxTensorBytes,
                      "begin at 0, or where the last message ended");
}

template <>
absl::Status Validate(const v1::UploadRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckBegin(request.begin()));
  return request.has_chunk() ? CheckChunk(request.chunk()) : absl::OkStatus();
}

template <>
absl::Status Validate(const v1::MapTensorRequest& request) {
  switch (request.message_case()) {
    case v1::MapTensorRequest::kBegin:
      AGMM_RETURN_IF_ERROR(CheckId("the id of the session", request.begin().session_id()));
      return CheckRef("the tensor", request.begin().tensor());
    case v1::MapTensorRequest::kCommit:
    case v1::MapTensorRequest::kRenew:
    case v1::MapTensorRequest::kRelease: return absl::OkStatus();
    case v1::MapTensorRequest::MESSAGE_NOT_SET: break;
  }
  return absl::InvalidArgumentError(
      "a message of a mapping is empty; set begin, commit, release or renew");
}

// Jobs.

template <>
absl::Status Validate(const v1::SubmitJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckId("the id of the request", request.request_id()));
  AGMM_RETURN_IF_ERROR(CheckId("the id of the session", request.session_id()));
  const int64_t spec_bytes = static_cast<int64_t>(request.spec().size());
  AGMM_RETURN_IF_ERROR(CheckBetween("the length of the spec", spec_bytes, 1, kMaxNotationBytes,
                                    "write one such as A[M_x, K] * B[K, N_x] -> C[M, N_x]"));
  AGMM_RETURN_IF_ERROR(CheckMesh(request.mesh()));
  AGMM_RETURN_IF_ERROR(request.operands().empty() ? CheckTensors(request) : CheckOperands(request));
  AGMM_RETURN_IF_ERROR(CheckOptions(request.options()));
  AGMM_RETURN_IF_ERROR(CheckBetween("the number of repeats", request.repeat_count(), 0, kMaxRepeat,
                                    "submit several jobs for more"));
  return CheckTimeout("the timeout of the job", request.timeout());
}

// The jobs are checked one by one, because an error here ends the stream.
template <>
absl::Status Validate(const v1::RunJobsRequest& request) {
  if (request.jobs_size() > kMaxUnansweredJobs) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a message of RunJobs has %d jobs; at most %d are taken; send them in several",
        request.jobs_size(), kMaxUnansweredJobs));
  }
  for (const v1::SubmitJobRequest& job : request.jobs()) {
    // The length of the id is checked, too, because the outcome repeats it.
    AGMM_RETURN_IF_ERROR(Annotate(CheckIdGiven("request_id", job.request_id()),
                                  "a job of RunJobs, whose outcome it identifies"));
  }
  return absl::OkStatus();
}

template <>
absl::Status Validate(const v1::GetJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckId("sequencer", request.sequencer()));
  return CheckIdGiven("the id of the job", request.job_id());
}

template <>
absl::Status Validate(const v1::WaitJobRequest& request) {
  return CheckIdGiven("the id of the job", request.job_id());
}

template <>
absl::Status Validate(const v1::CancelJobRequest& request) {
  return CheckIdGiven("the id of the job", request.job_id());
}

template <>
absl::Status Validate(const v1::ListJobsRequest& request) {
  return CheckPageSize(request.page_size());
}

template <>
absl::Status Validate(const v1::WatchJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckIdGiven("the id of the job", request.job_id()));
  return CheckBetween("after_event", request.after_event(), 0, INT64_MAX,
                      "give the number of the last event that was seen, or 0");
}

// The machine.

template <>
absl::Status Validate(const v1::GetMachineRequest&) {
  return absl::OkStatus();
}

template <>
absl::Status Validate(const v1::MeasureMachineRequest&) {
  return absl::OkStatus();
}

template <>
absl::Status Validate(const v1::GetTuningRequest&) {
  return absl::OkStatus();
}

template <>
absl::Status Validate(const v1::StoreTuningRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckBetween("the length of plans", request.plans_size(), 1, kMaxTunedPlans,
                                    "store more in several calls"));
  AGMM_RETURN_IF_ERROR(CheckBetween("the length of ranks", request.ranks_size(), 0, kMaxRanks,
                                    "give those of one mesh"));
  for (int i = 0; i < request.plans_size(); ++i) {
    if (const auto plan = FromProto(request.plans(i)); !plan.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("plans[%d].%s", i, plan.status().message()));
    }
  }
  return absl::OkStatus();
}

// Calls of the other nodes, which have already checked their clients' requests: these checks only
// prevent harm from a broken request.

template <>
absl::Status Validate(const v1::BeginLeaseRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckBetween("node", request.node(), 0, INT32_MAX, "give the daemon's own"));
  switch (request.target_case()) {
    case v1::BeginLeaseRequest::kTensorId:
      return CheckIdGiven("the id of the tensor", request.tensor_id());
    case v1::BeginLeaseRequest::kName:
      return CheckTensorName("the name of the tensor", request.name());
    case v1::BeginLeaseRequest::kPut: return Validate(request.put());
    case v1::BeginLeaseRequest::TARGET_NOT_SET: break;
  }
  return absl::InvalidArgumentError("a lease has no target; set tensor_id, name or put");
}

template <>
absl::Status Validate(const v1::EndLeaseRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckBetween("node", request.node(), 0, INT32_MAX, "give the daemon's own"));
  return CheckIdGiven("lease_id", request.lease_id());
}

template <>
absl::Status Validate(const v1::OpenedSessionRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckBetween("node", request.node(), 0, INT32_MAX, "give the daemon's own"));
  AGMM_RETURN_IF_ERROR(CheckIdGiven("the id of the session", request.session_id()));
  return CheckProgram(request.program());
}

template <>
absl::Status Validate(const v1::CloseSessionRequest& request) {
  return CheckIdGiven("the id of the session", request.session_id());
}

}  // namespace agmm
