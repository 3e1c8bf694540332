#include "kernels/cuda/gpu_lease.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// Opens the file, or creates it. Tries without O_CREAT first, because a kernel may refuse O_CREAT
// for another user's file in a folder that everybody can write to.
int OpenLock(const std::string& path) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW;
  for (const int mode : {O_RDWR, O_RDONLY}) {
    const int file = open(path.c_str(), kFlags | mode);
    if (file >= 0) return file;
  }
  const int file = open(path.c_str(), kFlags | O_RDWR | O_CREAT, 0666);
  if (file >= 0) fchmod(file, 0666);
  return file;
}

// Returns true if `path` still names the open file. Its last holder may have removed it meanwhile.
bool IsFile(int file, const std::string& path) {
  struct stat opened, named;
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuLease>> GpuLease::Take(const std::string& uuid, bool shared,
                                                         const std::string& where) {
  std::unique_ptr<GpuLease> lease(new GpuLease(absl::StrCat("/tmp/agmm-gpu-", uuid, ".lock")));
  AGMM_RETURN_IF_ERROR(lease->Lock(shared, where));
  return lease;
}

absl::Status GpuLease::Lock(bool shared, const std::string& where) {
  do {
    if (file_ >= 0) close(file_);
    file_ = OpenLock(path_);
    if (file_ < 0) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s cannot be held: %s: %s; make the file writable for this user", where,
                          path_, std::strerror(errno)));
    }
    if (flock(file_, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
      char holder[32] = {};
      if (pread(file_, holder, sizeof(holder) - 1, 0) < 0) holder[0] = '\0';
      return absl::FailedPreconditionError(
          absl::StrFormat("%s is held by another daemon, process %d (%s); give this one another "
                          "GPU or end that one",
                          where, std::atoi(holder), path_));
    }
  } while (!IsFile(file_, path_));
  const std::string holder = absl::StrCat(getpid(), "\n");
  // For the errors of other processes. A file of another user may only be readable.
  if (ftruncate(file_, 0) == 0 && pwrite(file_, holder.data(), holder.size(), 0) < 0)
    return absl::InternalError(absl::StrFormat("%s: %s", path_, std::strerror(errno)));
  return absl::OkStatus();
}

GpuLease::~GpuLease() {
  if (file_ < 0) return;
  // Fails if another process holds the lease too.
  if (flock(file_, LOCK_EX | LOCK_NB) == 0 && IsFile(file_, path_)) unlink(path_.c_str());
  close(file_);
}

}  // namespace agmm
