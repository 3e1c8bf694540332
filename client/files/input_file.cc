#include "client/files/input_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/files/file_error.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

bool SameTime(const timespec& one, const timespec& other) {
  return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(const std::string& path,
                                                           std::stop_token stop) {
  const bool standard = path == "-";
  // Without O_NONBLOCK, the open of a named pipe waits for its writer.
  const int fd = standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                          : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const std::string name = standard ? "standard input" : path;
  if (fd < 0) return PathError("open", name, errno);
  std::unique_ptr<InputFile> file(new InputFile(name, fd, std::move(stop)));
  if (fstat(fd, &file->opened_) != 0) return SystemError("examine", name);
  const mode_t mode = file->opened_.st_mode;
  // Standard input that has been partly read is treated like a pipe.
  if (S_ISREG(mode) && lseek(fd, 0, SEEK_CUR) == 0) {
    file->bytes_ = file->opened_.st_size;
    return file;
  }
  if (!S_ISREG(mode) && !S_ISFIFO(mode) && !S_ISSOCK(mode)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is neither a regular file nor a pipe; give one of these", name));
  }
  AGMM_RETURN_IF_ERROR(file->KeepPipe());
  return file;
}

// From here on, fd_ is a file that receives the bytes of the pipe.
absl::Status InputFile::KeepPipe() {
  const char* const given = std::getenv("TMPDIR");
  const std::string folder = given != nullptr && *given != '\0' ? given : "/tmp";
  pipe_ = std::exchange(fd_, -1);
  if (stop_.stop_possible()) {
    wake_ = eventfd(0, EFD_CLOEXEC);
    if (wake_ < 0) return SystemError("make an eventfd for", name_);
    on_stop_.emplace(stop_, Wake{wake_});
  }
  fd_ = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd_ >= 0) return absl::OkStatus();
  std::string path = absl::StrCat(folder, "/agmm-XXXXXX");
  fd_ = mkostemp(path.data(), O_CLOEXEC);
  if (fd_ >= 0) unlink(path.c_str());
  if (fd_ >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is a pipe, whose bytes cannot be kept in %s: %s; set TMPDIR to a "
                      "folder that can be written",
                      name_, folder, std::strerror(errno)));
}

InputFile::~InputFile() {
  on_stop_.reset();
  for (const int fd : {fd_, pipe_, wake_})
    if (fd >= 0) close(fd);
}

void InputFile::Wake::operator()() const { eventfd_write(fd, 1); }

absl::Status InputFile::AwaitPipe() {
  pollfd ready[] = {{pipe_, POLLIN, 0}, {wake_, POLLIN, 0}};
  while (poll(ready, std::size(ready), -1) < 0)
    if (errno != EINTR) return SystemError("wait for", name_);
  if (!stop_.stop_requested()) return absl::OkStatus();
  return absl::CancelledError(
      absl::StrCat("stopped at the caller's request while ", name_, " was read"));
}

absl::StatusOr<int64_t> InputFile::SizeUpTo(int64_t most) {
  if (pipe_ < 0) return bytes_;
  constexpr int64_t kPiece = 1 << 20;
  std::vector<char> piece(kPiece);
  while (bytes_ < most) {
    AGMM_RETURN_IF_ERROR(AwaitPipe());
    const ssize_t got = read(pipe_, piece.data(), std::min(kPiece, most - bytes_));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return SystemError("read", name_);
    if (got == 0) break;
    for (ssize_t kept = 0; kept < got;) {
      const ssize_t wrote = pwrite(fd_, piece.data() + kept, got - kept, bytes_);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return SystemError("keep the bytes of", name_);
      kept += wrote;
      bytes_ += wrote;
    }
  }
  return bytes_;
}

absl::StatusOr<std::string> InputFile::ReadHead(int64_t bytes) {
  AGMM_ASSIGN_OR_RETURN(const int64_t size, SizeUpTo(bytes));
  std::string head(std::min(size, bytes), '\0');
  AGMM_ASSIGN_OR_RETURN(const int64_t got, Read(0, static_cast<int64_t>(head.size()), head.data()));
  head.resize(got);
  return head;
}

absl::StatusOr<int64_t> InputFile::Read(int64_t offset, int64_t bytes, char* out) const {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd_, out + done, bytes - done, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read", name_);
    if (got == 0) break;
    done += got;
  }
  return done;
}

absl::Status InputFile::CheckUnchanged() const {
  if (pipe_ >= 0) return absl::OkStatus();
  struct stat now;
  if (fstat(fd_, &now) != 0) return SystemError("examine", name_);
  if (now.st_size == opened_.st_size && SameTime(now.st_mtim, opened_.st_mtim))
    return absl::OkStatus();
  const std::string sizes =
      now.st_size == opened_.st_size
          ? ""
          : absl::StrFormat(", from %d bytes to %d", opened_.st_size, now.st_size);
  return absl::DataLossError(absl::StrFormat(
      "%s was modified during the read%s; retry when no process is writing it", name_, sizes));
}

}  // namespace agmm
