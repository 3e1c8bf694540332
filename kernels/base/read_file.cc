#include "kernels/base/read_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/deadline.h"

namespace agmm {
absl::StatusOr<FileContents> ReadFileUpTo(const std::string& path, size_t max_bytes,
                                          absl::string_view what, absl::Duration patience) {
  const auto failure = [&] {
    return absl::ErrnoToStatus(errno, absl::StrCat(what, " cannot be read"));
  };
  // O_NONBLOCK, because opening a pipe would otherwise wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return failure();
  const absl::Cleanup close_file = [fd] { close(fd); };
  FileContents contents;
  if (fstat(fd, &contents.info) != 0) return failure();
  if (S_ISDIR(contents.info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(what, " is a directory; give a file"));
  const Deadline deadline = Deadline::After(patience);
  while (contents.bytes.size() < max_bytes) {
    char piece[4096];
    const size_t room = std::min(sizeof(piece), max_bytes - contents.bytes.size());
    const ssize_t count = read(fd, piece, room);
    if (count == 0) break;
    if (count > 0) {
      contents.bytes.append(piece, count);
    } else if (errno == EAGAIN) {
      pollfd readable{fd, POLLIN, 0};
      poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(deadline.Left())) + 1);
    } else if (errno != EINTR) {
      return failure();
    }
    if (deadline.HasPassed()) {
      return absl::DeadlineExceededError(
          absl::StrFormat("%s did not end within %s; give a file instead of a pipe", what,
                          absl::FormatDuration(patience)));
    }
  }
  return contents;
}

}  // namespace agmm
