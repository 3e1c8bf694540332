// Memory of a GPU that other GPUs can load and store, too.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/gpu.h"

namespace agmm {

// Must not be in use when it is destroyed. Not freed for a GPU that is given up.
class MappedBytes {
 public:
  // Returns the size of the GPU's pages: each memory takes whole ones.
  static absl::StatusOr<int64_t> PageBytes(const std::shared_ptr<Gpu>& gpu);
  // Returns at least `bytes`, mapped for `gpu`. Errors: RESOURCE_EXHAUSTED if the GPU has less
  // memory.
  static absl::StatusOr<std::unique_ptr<MappedBytes>> Create(std::shared_ptr<Gpu> gpu,
                                                             int64_t bytes);
  ~MappedBytes();
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;

  CUdeviceptr address() const { return address_; }
  // Lets `gpu`, which has peer access, load and store it. Thread-safe.
  absl::Status MapFor(const Gpu& gpu);

 private:
  MappedBytes(std::shared_ptr<Gpu> gpu, int64_t bytes) : gpu_(std::move(gpu)), bytes_(bytes) {}
  absl::Status Map(int64_t page);

  const std::shared_ptr<Gpu> gpu_;
  const int64_t bytes_;  // whole pages
  CUdeviceptr address_ = 0;
  CUmemGenericAllocationHandle memory_ = 0;
  bool created_ = false, mapped_ = false;
  std::mutex mutex_;
  std::set<int> mapped_for_;  // numbers of GPUs
};

}  // namespace agmm
