// Errors of the system's calls on files.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace agmm {

// "cannot open w.npy: No such file or directory", for a path that the caller has chosen. The reason
// is FILE_NOT_FOUND if the file, or the folder for it, does not exist.
absl::Status PathError(absl::string_view action, const std::string& path, int error);

// "cannot read w.npy: Input/output error", for a file that is open, from errno.
absl::Status SystemError(absl::string_view action, const std::string& name);

}  // namespace agmm
