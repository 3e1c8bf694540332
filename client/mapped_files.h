// The files of a mapping, and the connection that they came over: while it is open, the daemon
// takes it that this process has them mapped, and gives the memory to nobody else.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agmm/v1/tensor.pb.h"

namespace agmm {

// Thread-compatible. A forked child has no part in it: it inherits neither the connection nor, if
// the owner sees to that, the memory.
class MappedFiles {
 public:
  MappedFiles() = default;
  ~MappedFiles() { LetGo(); }
  MappedFiles(const MappedFiles&) = delete;

  // Fetches what the token of `response` stands for. Once. Errors: UNAVAILABLE.
  absl::Status Fetch(const v1::MapTensorResponse& response, absl::Time deadline);
  // Closed by CloseFiles, at the latest by LetGo.
  const std::vector<int>& files() const { return files_; }
  // The memory that is mapped by now needs them no more.
  void CloseFiles();
  // Nothing of the files is mapped any more: tells the daemon.
  void LetGo();

 private:
  int connection_ = -1;
  std::vector<int> files_;
};

}  // namespace agmm
