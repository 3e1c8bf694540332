// How long a text from outside may be, where it is kept. What is notation is bounded by its parser.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace agmm {

inline constexpr size_t kMaxIdBytes = 256;  // request and session ids
inline constexpr size_t kMaxNameBytes = 256;

// INVALID_ARGUMENT, with length and bound, if `text` is longer than that.
inline absl::Status CheckLength(absl::string_view what, absl::string_view text, size_t bound) {
  if (text.size() <= bound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the %s has %d bytes; at most %d are kept; use a shorter one", what, text.size(), bound));
}

}  // namespace agmm
