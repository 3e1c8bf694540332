// The machine's lock on one GPU, which daemons take so that no two of them use it at once.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace agmm {

// A locked file, /tmp/agmm-gpu-UUID.lock, that contains the process number of its holder.
// Immutable, so any thread may destroy it.
class GpuLease {
 public:
  // `uuid` identifies the GPU, and `where` names it in errors: "GPU 2". Several processes may hold
  // the lease if all of them take it as `shared`. Errors: FAILED_PRECONDITION for a GPU that
  // another process holds, or for a file that this user cannot open.
  static absl::StatusOr<std::unique_ptr<GpuLease>> Take(const std::string& uuid, bool shared,
                                                        const std::string& where);
  // Removes the file, unless another process holds it too.
  ~GpuLease();
  GpuLease(const GpuLease&) = delete;
  GpuLease& operator=(const GpuLease&) = delete;

 private:
  explicit GpuLease(std::string path) : path_(std::move(path)) {}
  absl::Status Lock(bool shared, const std::string& where);

  const std::string path_;
  int file_ = -1;
};

}  // namespace agmm
