#include <cmath>

#include "absl/strings/str_format.h"
#include "daemon/rpc/validate.h"
#include "daemon/rpc/validate_terms.h"
#include "kernels/base/status.h"
#include "proto/convert/blocks.h"

namespace agmm {
namespace {

// The smallest element; a dtype's own the stream checks, which knows the tensor.
constexpr int64_t kElementBytes = 2;

// Also within a put or a fill: its fields go by their own names, which are those of flags and of
// agmm.h.
absl::Status CheckPut(const v1::CreateTensorRequest& request) {
  // A name is given or left out.
  if (!request.name().empty()) AGMM_RETURN_IF_ERROR(CheckName("name", request.name()));
  AGMM_RETURN_IF_ERROR(CheckId("session_id", request.session_id()));
  AGMM_RETURN_IF_ERROR(CheckId("request_id", request.request_id()));
  return CheckSpec("spec", request.spec());
}

absl::Status NoTarget(absl::string_view field) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has no target; set tensor_id, or put for a tensor by its name"));
}

absl::Status CheckDataBytes(absl::string_view field, size_t bytes) {
  return CheckBetween(field, static_cast<int64_t>(bytes), 1, kMaxPieceBytes,
                      "send so many bytes a message");
}

absl::Status CheckBegin(const v1::BeginUpload& begin) {
  AGMM_RETURN_IF_ERROR(CheckIdGiven("begin.upload_id", begin.upload_id()));
  switch (begin.target_case()) {
    case v1::BeginUpload::kTensorId: return CheckIdGiven("begin.tensor_id", begin.tensor_id());
    case v1::BeginUpload::kPut: return CheckPut(begin.put());
    case v1::BeginUpload::TARGET_NOT_SET: break;
  }
  return NoTarget("begin");
}

absl::Status CheckChunk(const v1::UploadChunk& chunk) {
  AGMM_RETURN_IF_ERROR(CheckDataBytes("chunk.data", chunk.data().size()));
  const int64_t size = static_cast<int64_t>(chunk.data().size());
  AGMM_RETURN_IF_ERROR(CheckBetween("chunk.offset_bytes", chunk.offset_bytes(), 0,
                                    kMaxTensorBytes - size, "begin where the last chunk ended"));
  if (chunk.offset_bytes() % kElementBytes == 0 && size % kElementBytes == 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "chunk of %d bytes at offset_bytes %d cuts an element in two; send whole ones", size,
      chunk.offset_bytes()));
}

}  // namespace

absl::Status Validate(const v1::CreateTensorRequest& request) { return CheckPut(request); }

absl::Status Validate(const v1::DeleteTensorRequest& request) {
  return CheckIdGiven("tensor_id", request.tensor_id());
}

absl::Status Validate(const v1::ListTensorsRequest& request) {
  return CheckBetween("page_size", request.page_size(), 0, kMaxPage,
                      "ask for the next page for more");
}

absl::Status Validate(const v1::GetTensorRequest& request) {
  return CheckRef("tensor", request.tensor());
}

absl::Status Validate(const v1::FillTensorRequest& request) {
  switch (request.target_case()) {
    case v1::FillTensorRequest::kTensorId:
      AGMM_RETURN_IF_ERROR(CheckIdGiven("tensor_id", request.tensor_id()));
      break;
    case v1::FillTensorRequest::kPut: AGMM_RETURN_IF_ERROR(CheckPut(request.put())); break;
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

absl::Status Validate(const v1::GetUploadRequest& request) {
  return CheckIdGiven("upload_id", request.upload_id());
}

absl::Status Validate(const v1::AbortUploadRequest& request) {
  return CheckIdGiven("upload_id", request.upload_id());
}

absl::Status Validate(const v1::ReadTensorRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckRef("tensor", request.tensor()));
  return CheckBetween("offset_bytes", request.offset_bytes(), 0, kMaxTensorBytes,
                      "begin at 0, or where the last message ended");
}

absl::Status Validate(const v1::UploadRequest& request) {
  switch (request.message_case()) {
    case v1::UploadRequest::kBegin: return CheckBegin(request.begin());
    case v1::UploadRequest::kChunk: return CheckChunk(request.chunk());
    case v1::UploadRequest::kCommit: return absl::OkStatus();
    case v1::UploadRequest::MESSAGE_NOT_SET: break;
  }
  return absl::InvalidArgumentError("a message of an upload is empty; set begin, chunk or commit");
}

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

}  // namespace agmm
