// A file that a command writes: a regular file, which appears when it is complete, or a pipe.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm {

// True for "-", and for a path to the file or pipe that standard output writes to, such as
// /dev/stdout and /dev/fd/1.
bool IsStandardOutput(const std::string& path);
// True if writing `path` replaces nothing: standard output, a pipe or a character device.
bool IsWrittenDirectly(const std::string& path);

// Thread-compatible.
class OutputFile {
 public:
  // Opens the file that `path` leads to, through links, even if it does not exist yet. Until Commit
  // the bytes are in a file next to it, whose name ends in ".agmm-tmp-PID-N"; the next Create for
  // the same path removes the files of killed processes. Pipes and character devices are written
  // directly; "-" is standard output. Errors: INVALID_ARGUMENT, one line with the path.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path);
  // Leaves the old file as it was, unless the new one was committed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Errors: the system's (RESOURCE_EXHAUSTED for a full disk).
  absl::Status Write(absl::string_view bytes);
  // Puts the file in place, once, after its bytes are on the disk. It gets the mode of the file
  // that it replaces, and the owner and the group as far as this user may set them. Errors: the
  // system's; the old file is still there then.
  absl::Status Commit();
  bool committed() const { return fd_ < 0; }

 private:
  struct Open {
    int fd = -1;
    std::string target, temporary;  // both are empty if the output is written directly
  };
  OutputFile(std::string path, Open open)
      : path_(std::move(path)),
        target_(std::move(open.target)),
        temporary_(std::move(open.temporary)),
        fd_(open.fd) {}
  static absl::StatusOr<Open> OpenDirectly(const std::string& path);
  static absl::StatusOr<Open> OpenNew(const std::string& path);
  // Writes the bytes to the disk, and moves the file to its place.
  absl::Status PutInPlace(int fd);

  const std::string path_, target_, temporary_;
  int fd_;  // -1 once committed
};

}  // namespace agmm
