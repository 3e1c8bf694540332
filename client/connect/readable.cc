#include "client/connect/readable.h"

#include <string>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/utf8.h"
#include "proto/limits.h"

namespace agmm {
namespace {

absl::Status CheckText(const char* field, const std::string& text) {
  const auto at = NoUtf8From(text);
  if (!at.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is not UTF-8 from byte %d on; encode it as UTF-8", field, *at));
}

}  // namespace

absl::Status CheckReadable(const v1::TensorRef& tensor) {
  return CheckText("the name of a tensor", tensor.name());
}

absl::Status CheckReadable(const v1::CreateTensorRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckText("the name of a tensor", request.name()));
  return CheckText("sharding", request.spec().sharding());
}

absl::Status CheckReadable(const v1::SubmitJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckText("request_id", request.request_id()));
  AGMM_RETURN_IF_ERROR(CheckText("spec", request.spec()));
  AGMM_RETURN_IF_ERROR(CheckText("algorithm", request.options().algorithm()));
  for (const v1::TensorRef& tensor : request.tensors()) AGMM_RETURN_IF_ERROR(CheckReadable(tensor));
  for (const v1::OperandTensor& operand : request.operands()) {
    AGMM_RETURN_IF_ERROR(CheckText("the name of an operand", operand.name()));
    AGMM_RETURN_IF_ERROR(CheckReadable(operand.tensor()));
  }
  if (const size_t bytes = request.ByteSizeLong(); bytes > kMaxJobBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the job's request has %d bytes, the limit is %d; use a shorter spec and "
                        "shorter names",
                        bytes, kMaxJobBytes));
  }
  return absl::OkStatus();
}

}  // namespace agmm
