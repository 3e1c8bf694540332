// A file that is read by position: a regular file, or a pipe, whose bytes are kept in a temporary
// file without a name.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace agmm {

// Thread-compatible.
class InputFile {
 public:
  // "-" is standard input. Does not wait for the writer of a pipe; reads do. A request to `stop`
  // ends their waits with CANCELLED. Errors: INVALID_ARGUMENT, one line with the path, for a file
  // that cannot be opened, or is neither a regular file nor a pipe.
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(const std::string& path,
                                                         std::stop_token stop = {});
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Its name in errors.
  const std::string& name() const { return name_; }
  // True if the size is not known before the end has been read.
  bool is_pipe() const { return pipe_ >= 0; }
  // Returns the size of a regular file. Reads a pipe up to `most` bytes or to its end, and returns
  // the number of bytes read so far. Errors: the system's.
  absl::StatusOr<int64_t> SizeUpTo(int64_t most);
  // Returns the first `bytes`, fewer if the file ends before. Reads no more of a pipe. Errors: the
  // system's.
  absl::StatusOr<std::string> ReadHead(int64_t bytes);
  // Reads `bytes` at `offset`, fewer at the end of the file; returns their number. Errors: the
  // system's.
  absl::StatusOr<int64_t> Read(int64_t offset, int64_t bytes, char* out) const;
  // To be called after reads. Errors: DATA_LOSS if the file was modified since it was opened, by
  // its size or its time of modification; the system's.
  absl::Status CheckUnchanged() const;

 private:
  struct Wake {
    int fd;
    void operator()() const;
  };

  InputFile(std::string name, int fd, std::stop_token stop)
      : name_(std::move(name)), stop_(std::move(stop)), fd_(fd) {}
  absl::Status KeepPipe();
  // Waits until the pipe can be read without a wait.
  absl::Status AwaitPipe();

  const std::string name_;
  const std::stop_token stop_;
  int fd_ = -1;    // the file that is read by position
  int pipe_ = -1;  // if it is a pipe
  int wake_ = -1;  // an eventfd that ends the wait for a pipe
  std::optional<std::stop_callback<Wake>> on_stop_;
  struct stat opened_ = {};  // of a regular file
  int64_t bytes_ = 0;
};

}  // namespace agmm
