// Text as a terminal shows it: UTF-8 in columns. A wide East Asian character takes two of them, a
// combining mark none.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace agmm {

size_t ColumnsOf(absl::string_view text);

// Returns as many whole characters from the beginning of `text` as fit into `columns`.
absl::string_view FirstColumns(absl::string_view text, size_t columns);

}  // namespace agmm
