#include "daemon/measure/tuning_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "daemon/measure/replace_file.h"
#include "kernels/base/deadline.h"
#include "kernels/base/read_file.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm::measure {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);

absl::StatusOr<int> OpenLock(const std::string& path) {
  // A FIFO must not block the daemon.
  constexpr int kFlags = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  // On NFS, only a writable descriptor can lock. Other users must not hold up the table.
  int fd = open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0660);
  const int error = errno;
  // The group of the folder may have no more than the right to read it.
  if (fd < 0 && error == EACCES) fd = open(path.c_str(), O_RDONLY | kFlags);
  if (fd < 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot open ", path));
  return fd;
}

absl::Status CannotLock(int error, const std::string& path) {
  const absl::Status status = absl::ErrnoToStatus(error, absl::StrCat("cannot lock ", path));
  return WithMessage(status, absl::StrCat(status.message(),
                                          "; allow the daemon's user to write it (mode 660), or "
                                          "name another folder in local.machines"));
}

// Returns a descriptor that holds the lock until it is closed.
absl::StatusOr<int> Lock(const std::string& path, absl::Duration patience) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  AGMM_ASSIGN_OR_RETURN(const int fd, OpenLock(path));
  absl::Cleanup close_it = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a regular file; remove it, and a daemon makes it again"));
  }
  const Deadline end = Deadline::After(patience);
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return CannotLock(errno, path);
    if (end.HasPassed()) {
      return absl::UnavailableError(
          absl::StrCat("another daemon holds ", path, " and writes the table; try again"));
    }
    absl::SleepFor(kPoll);
  }
  std::move(close_it).Cancel();
  return fd;
}

}  // namespace

TuningFile::TuningFile(const std::string& folder, absl::Duration patience)
    : path_(folder.empty() ? "" : absl::StrCat(folder, "/tuning.textproto")), patience_(patience) {}

absl::StatusOr<std::string> TuningFile::Text() const {
  if (path_.empty()) return text_;
  absl::StatusOr<FileContents> read = ReadFileUpTo(path_, kMaxTuningBytes + 1, path_);
  if (absl::IsNotFound(read.status())) return "";
  if (!read.ok()) return read.status();
  if (static_cast<int64_t>(read->bytes.size()) > kMaxTuningBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s has more than %s; remove some of its entries", path_, FormatBytes(kMaxTuningBytes)));
  }
  return std::move(read->bytes);
}

absl::StatusOr<TuningText> TuningFile::Read() const {
  AGMM_ASSIGN_OR_RETURN(const std::string text, Text());
  return ReadTuning(text, name());
}

absl::StatusOr<TuningText> TuningFile::Add(const std::vector<TunedPlan>& plans) {
  int lock = -1;
  const absl::Cleanup unlock = [&] {
    if (lock >= 0) close(lock);
  };
  if (!path_.empty()) {
    AGMM_ASSIGN_OR_RETURN(lock, Lock(absl::StrCat(path_, ".lock"), patience_));
  }
  AGMM_ASSIGN_OR_RETURN(const std::string old, Text());
  AGMM_ASSIGN_OR_RETURN(std::string text, AddTuning(old, name(), plans));
  if (static_cast<int64_t>(text.size()) > kMaxTuningBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s would have %s, more than %s; remove some of its entries", name(),
        FormatBytes(static_cast<int64_t>(text.size())), FormatBytes(kMaxTuningBytes)));
  }
  if (path_.empty()) {
    text_ = std::move(text);
    return ReadTuning(text_, name());
  }
  AGMM_RETURN_IF_ERROR(ReplaceFile(path_, text));
  return ReadTuning(text, name());
}

}  // namespace agmm::measure
