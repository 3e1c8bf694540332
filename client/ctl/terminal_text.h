// Text as a terminal shows it: UTF-8 in columns. A wide East Asian character takes two of them, a
// combining mark none.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace agmm {

size_t ColumnsOf(absl::string_view text);

// Returns as many whole characters from the beginning of `text` as fit into `columns`.
absl::string_view FirstColumns(absl::string_view text, size_t columns);

// Returns `text` with its control characters (except newlines) and the bytes that are not UTF-8 as
// "\x1b", so that none reaches the terminal.
std::string Printable(absl::string_view text);

}  // namespace agmm
