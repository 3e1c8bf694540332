#include "client/npy/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

namespace fs = std::filesystem;

absl::Status CannotCreate(const std::string& path, int error) {
  return absl::InvalidArgumentError(
      absl::StrFormat("cannot create %s: %s", path, std::strerror(error)));
}

// The file that `path` leads to, which need not exist.
absl::StatusOr<std::string> Followed(const std::string& path) {
  constexpr int kMostLinks = 40;  // as in Linux
  std::error_code error;
  fs::path at = path;
  for (int links = 0; fs::is_symlink(fs::symlink_status(at, error)); ++links) {
    if (links == kMostLinks) return CannotCreate(path, ELOOP);
    const fs::path to = fs::read_symlink(at, error);
    if (error) return CannotCreate(path, error.value());
    at = to.is_absolute() ? to : at.parent_path() / to;
  }
  const fs::path real = fs::weakly_canonical(at, error);
  return error ? at.string() : real.string();
}

fs::path FolderOf(const std::string& target) {
  const fs::path folder = fs::path(target).parent_path();
  return folder.empty() ? "." : folder;
}

std::string TemporaryPrefix(const std::string& target) { return absl::StrCat(target, ".tmp-"); }

std::string TemporaryName(const std::string& target) {
  static std::atomic<int> serial{0};
  return absl::StrFormat("%s%d-%d", TemporaryPrefix(target), getpid(), ++serial);
}

// Removes what killed processes have left: files that no process holds locked.
void RemoveStale(const std::string& target) {
  std::error_code error;
  const std::string prefix = TemporaryPrefix(fs::path(target).filename().string());
  for (const fs::directory_entry& entry : fs::directory_iterator(FolderOf(target), error)) {
    if (!absl::StartsWith(entry.path().filename().string(), prefix)) continue;
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(entry.path().c_str());
    close(fd);
  }
}

// A file beside `target`: without a name where the file system has such files, else by the name
// `temporary`. Returns -1 and sets errno on failure.
int OpenBeside(const std::string& target, std::string* temporary) {
  if (!AGMM_FAILPOINT("output.no_unnamed_files") && access("/proc/self/fd", X_OK) == 0) {
    const int fd = open(FolderOf(target).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0) return fd;
  }
  RemoveStale(target);
  *temporary = TemporaryName(target);
  const int fd = open(temporary->c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (fd >= 0) flock(fd, LOCK_EX | LOCK_NB);
  return fd;
}

// Gives `fd` the owner, the group and the mode of the file that it will replace.
absl::Status KeepOwnerAndMode(const std::string& path, const struct stat& old, int fd) {
  struct stat made;
  if (fstat(fd, &made) != 0) return CannotCreate(path, errno);
  if ((made.st_uid != old.st_uid || made.st_gid != old.st_gid) &&
      fchown(fd, old.st_uid, old.st_gid) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s belongs to user %d and group %d, which a new file of this user cannot; name another "
        "output",
        path, old.st_uid, old.st_gid));
  }
  return fchmod(fd, old.st_mode & 07777) == 0 ? absl::OkStatus() : CannotCreate(path, errno);
}

}  // namespace

bool IsStandardOutput(absl::string_view path) { return path == "-" || path == "/dev/stdout"; }

absl::StatusOr<OutputFile::Open> OutputFile::OpenDirectly(const std::string& path) {
  const int fd = IsStandardOutput(path) ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                                        : open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return CannotCreate(path, errno);
  Open opened;
  if (isatty(fd) == 0) opened.file = fdopen(fd, "w");
  if (opened.file != nullptr) return opened;
  close(fd);
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
  const int fd = OpenBeside(opened.target, &opened.temporary);
  if (fd < 0) return CannotCreate(path, errno);
  absl::Cleanup remove = [&] {
    close(fd);
    if (!opened.temporary.empty()) unlink(opened.temporary.c_str());
  };
  if (replaces) AGMM_RETURN_IF_ERROR(KeepOwnerAndMode(path, old, fd));
  opened.file = fdopen(fd, "w");
  if (opened.file == nullptr) return CannotCreate(path, errno);
  std::move(remove).Cancel();
  return opened;
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("the name of the output file is empty");
  struct stat info;
  const bool direct = IsStandardOutput(path) || (stat(path.c_str(), &info) == 0 &&
                                                 (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)));
  AGMM_ASSIGN_OR_RETURN(Open opened, direct ? OpenDirectly(path) : OpenNew(path));
  return std::unique_ptr<OutputFile>(new OutputFile(path, std::move(opened)));
}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status OutputFile::Write(absl::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size()) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
}

bool OutputFile::Link() {
  const std::string from = absl::StrCat("/proc/self/fd/", fileno(file_));
  if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, target_.c_str(), AT_SYMLINK_FOLLOW) == 0)
    return true;
  if (errno != EEXIST) return false;
  // A link cannot replace a file; a name can.
  temporary_ = TemporaryName(target_);
  return linkat(AT_FDCWD, from.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

absl::Status OutputFile::Commit() {
  bool done = std::fflush(file_) == 0;
  if (done && !target_.empty() && temporary_.empty()) done = Link();
  if (done && !temporary_.empty()) done = rename(temporary_.c_str(), target_.c_str()) == 0;
  absl::Status status;
  if (!done) status = absl::ErrnoToStatus(errno, absl::StrCat("cannot put in place ", path_));
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && status.ok())
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
  if (!done && !temporary_.empty()) unlink(temporary_.c_str());
  return status;
}

}  // namespace agmm
