// A file that is read by position: a regular file, or a pipe, whose bytes are kept in a temporary
// file without a name.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace agmm {

// Thread-compatible.
class InputFile {
 public:
  // "-" is standard input. Errors: INVALID_ARGUMENT, one line with the path, for a file that cannot
  // be opened, or is neither a regular file nor a pipe.
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Its name in errors.
  const std::string& name() const { return name_; }
  // Returns the size of a regular file. Reads a pipe up to `most` bytes or to its end, and returns
  // the number of bytes read so far. Errors: the system's.
  absl::StatusOr<int64_t> SizeUpTo(int64_t most);
  // Reads `bytes` at `offset`, fewer at the end of the file; returns their number. Errors: the
  // system's.
  absl::StatusOr<int64_t> Read(int64_t offset, int64_t bytes, char* out) const;
  // To be called after reads. Errors: DATA_LOSS if the file was modified since it was opened, by
  // its size or its time of modification; the system's.
  absl::Status CheckUnchanged() const;

 private:
  InputFile(std::string name, int fd) : name_(std::move(name)), fd_(fd) {}
  absl::Status KeepPipe();

  const std::string name_;
  int fd_ = -1;              // the file that is read by position
  int pipe_ = -1;            // if it is a pipe
  struct stat opened_ = {};  // of a regular file
  int64_t bytes_ = 0;
};

}  // namespace agmm
