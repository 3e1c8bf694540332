// The parts of the public header that need no daemon.
#include <cstdio>
#include <cstdlib>

#include "client/agmm.h"
#include "kernels/base/dtype.h"

namespace agmm {
namespace {

const char* NameOf(StatusCode code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  const size_t index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

}  // namespace

std::string Status::ToString() const {
  return ok() ? "OK" : std::string(NameOf(code_)) + ": " + message_;
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
