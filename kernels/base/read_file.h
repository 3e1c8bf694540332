// Reads small files that a user has named. The name may turn out to be a pipe or a directory.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace agmm {

struct FileContents {
  std::string bytes;
  struct stat info;
};

// Reads `path` to its end, or `max_bytes` of it. Waits at most `patience` for the writer of a pipe
// to close it, and never for a writer to open it. `what` names the file in errors: "the secret x".
// Errors: NOT_FOUND, PERMISSION_DENIED and the like; INVALID_ARGUMENT for a directory;
// DEADLINE_EXCEEDED for a pipe whose writer does not end.
absl::StatusOr<FileContents> ReadFileUpTo(const std::string& path, size_t max_bytes,
                                          absl::string_view what,
                                          absl::Duration patience = absl::Seconds(5));

}  // namespace agmm
