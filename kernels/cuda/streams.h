// Streams, events and device memory of one GPU, and the streams of one rank. Objects of a GPU that
// is given up are not destroyed (GpuHealth::GiveUp).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gpu.h"

namespace agmm {

// Destroys the events that it made, with the GPU's context current.
class GpuEvents {
 public:
  explicit GpuEvents(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~GpuEvents();
  GpuEvents(const GpuEvents&) = delete;
  GpuEvents& operator=(const GpuEvents&) = delete;
  // Returns an event that keeps its time.
  absl::StatusOr<CUevent> Make();

 private:
  const std::shared_ptr<Gpu> gpu_;
  std::vector<CUevent> events_;
};

// The destructor does not wait for the stream's work.
class GpuStream {
 public:
  static absl::StatusOr<std::unique_ptr<GpuStream>> Create(std::shared_ptr<Gpu> gpu,
                                                           int priority = 0);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  CUstream get() const { return stream_; }
  Gpu& gpu() const { return *gpu_; }

 private:
  GpuStream(std::shared_ptr<Gpu> gpu, CUstream stream) : gpu_(std::move(gpu)), stream_(stream) {}
  const std::shared_ptr<Gpu> gpu_;
  const CUstream stream_;
};

// Memory of a GPU. Nothing may use it when it is destroyed.
class GpuBytes {
 public:
  // `purpose` names it in the error: "a workspace for products".
  static absl::StatusOr<std::unique_ptr<GpuBytes>> Create(std::shared_ptr<Gpu> gpu, int64_t bytes,
                                                          const char* purpose);
  ~GpuBytes();
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;
  CUdeviceptr address() const { return address_; }
  int64_t bytes() const { return bytes_; }

 private:
  GpuBytes(std::shared_ptr<Gpu> gpu, CUdeviceptr address, int64_t bytes)
      : gpu_(std::move(gpu)), address_(address), bytes_(bytes) {}
  const std::shared_ptr<Gpu> gpu_;
  const CUdeviceptr address_;
  const int64_t bytes_;
};

// The streams of a rank. All of its plans share them, because the steps that a rank submits on one
// stream may run in that order. Made when a plan first needs them. Thread-safe.
class RankStreams {
 public:
  explicit RankStreams(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  // Returns the stream on which steps of a lane run. A lane without multiplies sends data that
  // other ranks wait for, so its kernels go first.
  absl::StatusOr<CUstream> Lane(int lane, bool multiplies);
  // Returns the workspace of the lane's products.
  absl::StatusOr<CUdeviceptr> Workspace(int lane);
  // Returns the stream of another GPU on which a lane's copies through pinned memory arrive.
  absl::StatusOr<GpuStream*> Through(int lane, std::shared_ptr<Gpu> to);
  int64_t workspace_bytes() const;

 private:
  const std::shared_ptr<Gpu> gpu_;
  mutable std::mutex mutex_;
  std::map<std::pair<int, bool>, std::unique_ptr<GpuStream>> lanes_;  // by lane and `multiplies`
  std::map<int, std::unique_ptr<GpuBytes>> workspaces_;
  std::map<std::pair<int, int>, std::unique_ptr<GpuStream>> through_;  // by lane and GPU
};

}  // namespace agmm
