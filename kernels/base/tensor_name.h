// The names that tensors may have.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace agmm {

inline constexpr size_t kMaxNameBytes = 256;

// Checks that a tensor may be called `name`: UTF-8 of at most kMaxNameBytes, without control
// characters, without a space at its ends, without ',', which separates names on command lines, and
// without a leading '#', which marks an id there. Errors: INVALID_ARGUMENT, about `subject`, such
// as "the name of the tensor".
absl::Status CheckTensorName(absl::string_view subject, absl::string_view name);

}  // namespace agmm
