// The width of a printed text.
#pragma once

#include <algorithm>
#include <string>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace agmm {

// Returns the length of the longest line, in bytes.
inline size_t Widest(const std::string& text) {
  size_t widest = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) widest = std::max(widest, line.size());
  return widest;
}

}  // namespace agmm
