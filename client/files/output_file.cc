#include "client/files/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <regex>
#include <system_error>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/files/file_error.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

namespace fs = std::filesystem;

// Returns the file that `path` leads to, which need not exist.
absl::StatusOr<std::string> Followed(const std::string& path) {
  constexpr int kMostLinks = 40;  // as in Linux
  std::error_code error;
  fs::path at = path;
  for (int links = 0; fs::is_symlink(fs::symlink_status(at, error)); ++links) {
    if (links == kMostLinks) return PathError("create", path, ELOOP);
    const fs::path to = fs::read_symlink(at, error);
    if (error) return PathError("create", path, error.value());
    at = to.is_absolute() ? to : at.parent_path() / to;
  }
  const fs::path real = fs::weakly_canonical(at, error);
  return error ? at.string() : real.string();
}

fs::path FolderOf(const std::string& target) {
  const fs::path folder = fs::path(target).parent_path();
  return folder.empty() ? "." : folder;
}

// A temporary file is named after its target, this, the id of its process, "-" and a number.
constexpr char kSuffix[] = ".agmm-tmp-";

bool IsTemporaryOf(const std::string& target, const std::string& name) {
  static const std::regex numbers("[0-9]+-[0-9]+");
  absl::string_view rest = name;
  return absl::ConsumePrefix(&rest, fs::path(target).filename().string() + kSuffix) &&
         std::regex_match(rest.begin(), rest.end(), numbers);
}

// Removes a file of this user that no process has locked. The lock decides, because the process's
// id may be that of another process in another container or on another host.
void RemoveUnlocked(const std::string& name) {
  const int fd = open(name.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;
  struct stat info;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
      info.st_nlink > 0 && info.st_uid == geteuid()) {
    unlink(name.c_str());
  }
  close(fd);
}

// Removes the temporary files that killed processes have left.
void RemoveStale(const std::string& target) {
  std::error_code error;
  for (fs::directory_iterator at(FolderOf(target), error), end; !error && at != end;
       at.increment(error)) {
    if (IsTemporaryOf(target, at->path().filename().string())) RemoveUnlocked(at->path().string());
  }
}

// Locks a new file until it is closed. Returns false if another process removed it as stale before
// that. On a file system without locks, RemoveUnlocked removes no file.
bool Lock(int fd) {
  struct stat info;
  return (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) && fstat(fd, &info) == 0 &&
         info.st_nlink > 0;
}

// Opens a new file beside `target`, locked, and stores its name. Returns -1 and sets errno on
// failure.
int OpenBeside(const std::string& target, mode_t mode, std::string* temporary) {
  static std::atomic<int> serial{0};
  while (true) {
    *temporary = absl::StrFormat("%s%s%d-%d", target, kSuffix, getpid(), ++serial);
    const int fd = open(temporary->c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode);
    if (fd < 0 && errno == EEXIST) continue;  // of a process with the same id elsewhere
    if (fd < 0 || Lock(fd)) return fd;
    unlink(temporary->c_str());
    close(fd);
  }
}

// Gives `fd` the mode of the file `old`, and its owner and group as far as this user may set them.
// If the group cannot be set, the new file's group gets the rights of others. Returns false and
// sets errno if the mode cannot be set.
bool KeepModeAndOwner(const struct stat& old, int fd) {
  if (fchown(fd, old.st_uid, old.st_gid) != 0) std::ignore = fchown(fd, -1, old.st_gid);
  struct stat made;
  if (fstat(fd, &made) != 0) return false;
  mode_t mode = old.st_mode & 07777;
  if (made.st_uid != old.st_uid) mode &= ~S_ISUID;
  if (made.st_gid != old.st_gid) mode = (mode & ~(S_ISGID | S_IRWXG)) | (mode & S_IRWXO) << 3;
  return mode == (made.st_mode & 07777) || fchmod(fd, mode) == 0;
}

// Closes `fd`. Returns false and sets errno if some bytes were not written.
bool CloseWritten(int fd) {
  if (close(fd) != 0) return false;
  if (!AGMM_FAILPOINT("output.no_space_at_close")) return true;
  errno = ENOSPC;
  return false;
}

}  // namespace

bool IsStandardOutput(const std::string& path) {
  struct stat named, standard;
  return path == "-" || (stat(path.c_str(), &named) == 0 && fstat(STDOUT_FILENO, &standard) == 0 &&
                         named.st_dev == standard.st_dev && named.st_ino == standard.st_ino);
}

bool IsWrittenDirectly(const std::string& path) {
  struct stat info;
  return IsStandardOutput(path) ||
         (stat(path.c_str(), &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)));
}

absl::StatusOr<OutputFile::Open> OutputFile::OpenDirectly(const std::string& path) {
  Open opened;
  opened.fd = IsStandardOutput(path) ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                                     : open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (opened.fd < 0) return PathError("create", path, errno);
  if (isatty(opened.fd) == 0) return opened;
  close(opened.fd);
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is a terminal; send the output to a file or a pipe", path));
}

absl::StatusOr<OutputFile::Open> OutputFile::OpenNew(const std::string& path) {
  Open opened;
  AGMM_ASSIGN_OR_RETURN(opened.target, Followed(path));
  struct stat old;
  const bool replaces = stat(opened.target.c_str(), &old) == 0;
  if (replaces && !S_ISREG(old.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s exists and is not a regular file; name another output", path));
  }
  if (replaces && ((old.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0 ||
                   access(opened.target.c_str(), W_OK) != 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s exists and is read-only; name another output", path));
  }
  RemoveStale(opened.target);
  // 0600, because the new file may only be read by users who may read the old one.
  opened.fd = OpenBeside(opened.target, replaces ? 0600 : 0666, &opened.temporary);
  if (opened.fd < 0) return PathError("create", path, errno);
  return opened;
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path) {
  if (path.empty())
    return absl::InvalidArgumentError("the name of the output file is empty; give a path");
  AGMM_ASSIGN_OR_RETURN(Open opened, IsWrittenDirectly(path) ? OpenDirectly(path) : OpenNew(path));
  return std::unique_ptr<OutputFile>(new OutputFile(path, std::move(opened)));
}

OutputFile::~OutputFile() {
  if (committed()) return;
  if (!temporary_.empty()) unlink(temporary_.c_str());
  close(fd_);
}

absl::Status OutputFile::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(fd_, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return SystemError("write", path_);
    bytes.remove_prefix(wrote);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  const int fd = std::exchange(fd_, -1);
  if (!target_.empty()) return PutInPlace(fd);
  return CloseWritten(fd) ? absl::OkStatus() : SystemError("write", path_);
}

absl::Status OutputFile::PutInPlace(int fd) {
  // Holds the lock until the rename. `fd` is closed before, because some file systems report only
  // then that the disk is full.
  const int lock = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  struct stat old;
  absl::Status status;
  if (lock < 0 || (stat(target_.c_str(), &old) == 0 && !KeepModeAndOwner(old, fd)) ||
      fsync(fd) != 0) {
    status = SystemError("write", path_);
  }
  if (!CloseWritten(fd) && status.ok()) status = SystemError("write", path_);
  if (status.ok() && rename(temporary_.c_str(), target_.c_str()) != 0)
    status = SystemError("rename the temporary file to", path_);
  if (!status.ok()) unlink(temporary_.c_str());
  if (lock >= 0) close(lock);
  return status;
}

}  // namespace agmm
