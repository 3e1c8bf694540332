#include "kernels/cuda/streams.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {

GpuEvents::~GpuEvents() {
  if (!gpu_->health().given_up().ok()) return;
  const OnGpu here(*gpu_);
  for (CUevent event : events_) gpu_->driver().cuEventDestroy(event);
}

absl::StatusOr<CUevent> GpuEvents::Make() {
  const OnGpu here(*gpu_);
  CUevent event = nullptr;
  AGMM_CUDA_RETURN(*gpu_, cuEventCreate, &event, CU_EVENT_DEFAULT);
  events_.push_back(event);
  return event;
}

absl::StatusOr<std::unique_ptr<GpuStream>> GpuStream::Create(std::shared_ptr<Gpu> gpu,
                                                             int priority) {
  const OnGpu here(*gpu);
  CUstream stream = nullptr;
  AGMM_CUDA_RETURN(*gpu, cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, priority);
  return std::unique_ptr<GpuStream>(new GpuStream(std::move(gpu), stream));
}

GpuStream::~GpuStream() {
  if (!gpu_->health().given_up().ok()) return;
  const OnGpu here(*gpu_);
  gpu_->driver().cuStreamDestroy(stream_);
}

absl::StatusOr<std::unique_ptr<GpuBytes>> GpuBytes::Create(std::shared_ptr<Gpu> gpu, int64_t bytes,
                                                           const char* purpose) {
  const OnGpu here(*gpu);
  CUdeviceptr address = 0;
  const CUresult result = gpu->driver().cuMemAlloc(&address, bytes);
  if (result != CUDA_SUCCESS) {
    return Annotate(gpu->Failed(result, "cuMemAlloc"),
                    absl::StrFormat("no %s for %s", FormatBytes(bytes), purpose));
  }
  return std::unique_ptr<GpuBytes>(new GpuBytes(std::move(gpu), address, bytes));
}

GpuBytes::~GpuBytes() {
  if (!gpu_->health().given_up().ok()) return;
  const OnGpu here(*gpu_);
  gpu_->driver().cuMemFree(address_);
}

absl::StatusOr<CUstream> RankStreams::Lane(int lane, bool multiplies) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<GpuStream>& stream = lanes_[{lane, multiplies}];
  if (stream == nullptr) {
    AGMM_ASSIGN_OR_RETURN(stream, GpuStream::Create(gpu_, multiplies ? 0 : gpu_->first_priority()));
  }
  return stream->get();
}

absl::StatusOr<CUdeviceptr> RankStreams::Workspace(int lane) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<GpuBytes>& workspace = workspaces_[lane];
  if (workspace == nullptr) {
    AGMM_ASSIGN_OR_RETURN(
        workspace, GpuBytes::Create(gpu_, kGemmWorkspaceBytes, "a workspace of a lane's products"));
  }
  return workspace->address();
}

absl::StatusOr<GpuStream*> RankStreams::Through(int lane, std::shared_ptr<Gpu> to) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<GpuStream>& stream = through_[{lane, to->number()}];
  if (stream == nullptr) {
    AGMM_ASSIGN_OR_RETURN(stream, GpuStream::Create(std::move(to)));
  }
  return stream.get();
}

int64_t RankStreams::workspace_bytes() const {
  std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [lane, workspace] : workspaces_)
    bytes += workspace == nullptr ? 0 : workspace->bytes();
  return bytes;
}

}  // namespace agmm
