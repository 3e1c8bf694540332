// Replaces a file as a whole.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace agmm::measure {

// Makes `text` the contents of `file`, and makes its folder. A reader sees the old contents or the
// new ones. Errors: one line with the file, which is as before.
absl::Status ReplaceFile(const std::string& file, absl::string_view text);

}  // namespace agmm::measure
