#include "kernels/base/reason.h"

namespace agmm {
namespace {
constexpr char kReasonUrl[] = "agmm/reason";
}  // namespace

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  if (!status.ok()) status.SetPayload(kReasonUrl, absl::Cord(reason));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  const absl::optional<absl::Cord> reason = status.GetPayload(kReasonUrl);
  return reason.has_value() ? std::string(*reason) : "";
}

}  // namespace agmm
