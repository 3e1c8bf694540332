// A file that a command writes: a regular file, which appears when it is complete, or a pipe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm {

// True for "-" and /dev/stdout.
bool IsStandardOutput(absl::string_view path);

// Thread-compatible.
class OutputFile {
 public:
  // Opens the file that writing `path` creates or replaces, with links resolved, also those to a
  // file that does not exist yet. It has the mode and the owner of the file that it replaces. Pipes
  // and character devices are written directly; "-" is standard output. Errors: INVALID_ARGUMENT,
  // one line with the path.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path);
  // Leaves the old file as it was, unless the new one was committed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Errors: the system's (RESOURCE_EXHAUSTED for a full disk).
  absl::Status Write(absl::string_view bytes);
  // Puts the file in place, once. Errors: the system's.
  absl::Status Commit();
  bool committed() const { return file_ == nullptr; }

 private:
  struct Open {
    std::FILE* file = nullptr;
    // The place, and the name that the file has until it is there: empty for a file without a name,
    // which vanishes when the process ends. Both are empty for a pipe.
    std::string target, temporary;
  };
  OutputFile(std::string path, Open open)
      : path_(std::move(path)),
        target_(std::move(open.target)),
        temporary_(std::move(open.temporary)),
        file_(open.file) {}
  static absl::StatusOr<Open> OpenDirectly(const std::string& path);
  static absl::StatusOr<Open> OpenNew(const std::string& path);
  // Gives the file a name: that of the target if it is free.
  bool Link();

  const std::string path_, target_;
  std::string temporary_;
  std::FILE* file_;  // null once committed
};

}  // namespace agmm
