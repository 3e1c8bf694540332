// The functions of the public header that need no daemon.
#include "client/agmm.h"

#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/dtype.h"

namespace agmm {

std::string Status::ToString() const {
  if (ok()) return "OK";
  return absl::StrCat(absl::StatusCodeToString(static_cast<absl::StatusCode>(code_)), ": ",
                      message_);
}

void FailWith(const Status& status) {
  std::fprintf(stderr, "agmm: %s\n", status.ToString().c_str());
  std::abort();
}

int64_t BytesOf(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

std::vector<uint16_t> ToBF16(std::span<const float> values) {
  std::vector<uint16_t> out(values.size());
  ConvertFromF32(DType::kBF16, values.data(), out.data(), static_cast<int64_t>(values.size()));
  return out;
}

std::vector<float> FromBF16(std::span<const uint16_t> values) {
  std::vector<float> out(values.size());
  ConvertToF32(DType::kBF16, values.data(), out.data(), static_cast<int64_t>(values.size()));
  return out;
}

}  // namespace agmm
