#include "daemon/rpc/validate.h"

#include <cmath>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/rpc/validate_terms.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/blocks.h"
#include "proto/limits.h"

namespace agmm {

// Also used for a put or a fill. Errors use the fields' own names, which are also those of flags
// and of agmm.h.
template <>
absl::Status Validate(const v1::CreateTensorRequest& request) {
  if (!request.name().empty()) AGMM_RETURN_IF_ERROR(CheckName("name", request.name()));
  AGMM_RETURN_IF_ERROR(CheckId("session_id", request.session_id()));
  AGMM_RETURN_IF_ERROR(CheckId("request_id", request.request_id()));
  return CheckSpec("spec", request.spec());
}

namespace {

constexpr int kProductTensors = 3;
constexpr int kMaxOperands = 64;
// The smallest element. The stream, which knows the tensor's dtype, checks its own.
constexpr int64_t kElementBytes = 2;

absl::Status NoTarget(absl::string_view field) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has no target; set tensor_id, or put for a tensor by its name"));
}

absl::Status CheckBegin(const v1::BeginUpload& begin) {
  AGMM_RETURN_IF_ERROR(CheckIdGiven("begin.upload_id", begin.upload_id()));
  switch (begin.target_case()) {
    case v1::BeginUpload::kTensorId: return CheckIdGiven("begin.tensor_id", begin.tensor_id());
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
  AGMM_RETURN_IF_ERROR(CheckBetween("the number of operands", request.operands_size(), 1,
                                    kMaxOperands, "give each operand of the spec once"));
  if (request.tensors_size() > 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("operands has %d entries and tensors has %d; give one of the two",
                        request.operands_size(), request.tensors_size()));
  }
  std::set<absl::string_view> names;
  for (int i = 0; i < request.operands_size(); ++i) {
    const v1::OperandTensor& operand = request.operands(i);
    if (operand.name().size() > kMaxNameBytes || !IsOperandName(operand.name())) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "operands[%d].name is \"%s\"; use up to %d letters and digits, a letter first, and not "
          "\"workspace\"",
          i, absl::CHexEscape(operand.name().substr(0, kMaxNameBytes)), kMaxNameBytes));
    }
    if (!names.insert(operand.name()).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "operands[%d].name is %s a second time; give each operand once", i, operand.name()));
    }
    AGMM_RETURN_IF_ERROR(CheckRef(absl::StrFormat("operands[%d].tensor", i), operand.tensor()));
  }
  return absl::OkStatus();
}

// In the form of three tensors.
absl::Status CheckTensors(const v1::SubmitJobRequest& request) {
  if (request.tensors_size() != kProductTensors) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensors has %d entries; a product has %d: give A, B and C",
                        request.tensors_size(), kProductTensors));
  }
  for (int i = 0; i < request.tensors_size(); ++i)
    AGMM_RETURN_IF_ERROR(CheckRef(absl::StrFormat("tensors[%d]", i), request.tensors(i)));
  return absl::OkStatus();
}

}  // namespace

// Status.

template <>
absl::Status Validate(const v1::GetStatusRequest&) {
  return absl::OkStatus();
}

// Tensors.

template <>
absl::Status Validate(const v1::DeleteTensorRequest& request) {
  return CheckIdGiven("tensor_id", request.tensor_id());
}

template <>
absl::Status Validate(const v1::ListTensorsRequest& request) {
  return CheckBetween("page_size", request.page_size(), 0, kMaxPage,
                      "ask for the next page for more");
}

template <>
absl::Status Validate(const v1::GetTensorRequest& request) {
  return CheckRef("tensor", request.tensor());
}

template <>
absl::Status Validate(const v1::FillTensorRequest& request) {
  switch (request.target_case()) {
    case v1::FillTensorRequest::kTensorId:
      AGMM_RETURN_IF_ERROR(CheckIdGiven("tensor_id", request.tensor_id()));
      break;
    case v1::FillTensorRequest::kPut: AGMM_RETURN_IF_ERROR(Validate(request.put())); break;
    case v1::FillTensorRequest::TARGET_NOT_SET: return NoTarget("the request");
  }
  const v1::Fill& fill = request.fill();
  if (!v1::Fill::Kind_IsValid(fill.kind()) || fill.kind() == v1::Fill::KIND_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fill.kind is %d; use UNIFORM, INTEGERS or CONSTANT", fill.kind()));
  }
  if (fill.kind() == v1::Fill::KIND_CONSTANT && !std::isfinite(fill.value())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fill.value is %f; a constant is a finite number", fill.value()));
  }
  return absl::OkStatus();
}

template <>
absl::Status Validate(const v1::AbortUploadRequest& request) {
  return CheckIdGiven("upload_id", request.upload_id());
}

template <>
absl::Status Validate(const v1::ReadTensorRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckRef("tensor", request.tensor()));
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
      AGMM_RETURN_IF_ERROR(CheckId("begin.session_id", request.begin().session_id()));
      return CheckRef("begin.tensor", request.begin().tensor());
    case v1::MapTensorRequest::kCommit: return absl::OkStatus();
    case v1::MapTensorRequest::MESSAGE_NOT_SET: break;
  }
  return absl::InvalidArgumentError("a message of a mapping is empty; set begin or commit");
}

// Jobs.

template <>
absl::Status Validate(const v1::SubmitJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckId("request_id", request.request_id()));
  AGMM_RETURN_IF_ERROR(CheckId("session_id", request.session_id()));
  const int64_t spec_bytes = static_cast<int64_t>(request.spec().size());
  AGMM_RETURN_IF_ERROR(CheckBetween("the length of spec", spec_bytes, 1, kMaxNotationBytes,
                                    "write one such as A[M_x, K] * B[K, N_x] -> C[M, N_x]"));
  AGMM_RETURN_IF_ERROR(CheckMesh("mesh", request.mesh()));
  AGMM_RETURN_IF_ERROR(request.operands().empty() ? CheckTensors(request) : CheckOperands(request));
  AGMM_RETURN_IF_ERROR(CheckOptions("options", request.options()));
  AGMM_RETURN_IF_ERROR(CheckBetween("repeat_count", request.repeat_count(), 0, kMaxRepeat,
                                    "submit several jobs for more"));
  return CheckTimeout("timeout", request.timeout());
}

template <>
absl::Status Validate(const v1::GetJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckId("sequencer", request.sequencer()));
  return CheckIdGiven("job_id", request.job_id());
}

template <>
absl::Status Validate(const v1::WaitJobRequest& request) {
  return CheckIdGiven("job_id", request.job_id());
}

template <>
absl::Status Validate(const v1::CancelJobRequest& request) {
  return CheckIdGiven("job_id", request.job_id());
}

template <>
absl::Status Validate(const v1::ListJobsRequest& request) {
  return CheckBetween("page_size", request.page_size(), 0, kMaxPage,
                      "ask for the next page for more");
}

template <>
absl::Status Validate(const v1::WatchJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckIdGiven("job_id", request.job_id()));
  return CheckBetween("after_event", request.after_event(), 0, INT64_MAX,
                      "give the number of the last event that was seen, or 0");
}

// Calls of the other nodes, which have already checked their clients' requests: these checks only
// prevent harm from a broken request.

template <>
absl::Status Validate(const v1::BeginLeaseRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckBetween("node", request.node(), 0, INT32_MAX, "give the daemon's own"));
  switch (request.target_case()) {
    case v1::BeginLeaseRequest::kTensorId: return CheckIdGiven("tensor_id", request.tensor_id());
    case v1::BeginLeaseRequest::kName: return CheckName("name", request.name());
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
  return CheckIdGiven("session_id", request.session_id());
}

template <>
absl::Status Validate(const v1::CloseSessionRequest& request) {
  return CheckIdGiven("session_id", request.session_id());
}

}  // namespace agmm
