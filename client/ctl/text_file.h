// Reads the text files that flags name.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm {

// Returns the text of the file `path`, or of standard input if it is "-". `flag` has named it.
// Errors: INVALID_ARGUMENT for a file that cannot be read, has more than `max_bytes` or is not
// text.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes,
                                         absl::string_view flag);

}  // namespace agmm
