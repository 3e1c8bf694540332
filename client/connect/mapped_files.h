// The files of a mapping, and the connection that they came over: while it is open, the daemon
// assumes that this process has them mapped, and does not reuse the memory.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/base/deadline.h"

namespace agmm {

// Thread-compatible. A forked child does not inherit the connection.
class MappedFiles {
 public:
  MappedFiles() = default;
  ~MappedFiles() { Release(); }
  MappedFiles(const MappedFiles&) = delete;

  // Fetches the files by the token of `response`; the caller closes them. May be called once.
  // Errors: UNAVAILABLE.
  absl::StatusOr<std::vector<int>> Fetch(const v1::MapTensorResponse& response, Deadline deadline);
  // Tells the daemon that the files are no longer mapped.
  void Release();

 private:
  int connection_ = -1;
};

}  // namespace agmm
