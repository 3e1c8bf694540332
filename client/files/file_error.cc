#include "client/files/file_error.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/reason.h"

namespace agmm {

absl::Status PathError(absl::string_view action, const std::string& path, int error) {
  const absl::Status status = absl::InvalidArgumentError(
      absl::StrFormat("cannot %s %s: %s", action, path, std::strerror(error)));
  return error == ENOENT ? WithReason(status, kReasonFileNotFound) : status;
}

absl::Status SystemError(absl::string_view action, const std::string& name) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", action, " ", name));
}

}  // namespace agmm
