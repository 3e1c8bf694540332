#include "kernels/cuda/pinned.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// The smallest region of a rank, so that several messages can be in flight.
constexpr int64_t kLeastBytes = 16 << 20;
constexpr int64_t kLineBytes = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedBytes>> PinnedBytes::Create(std::shared_ptr<Gpu> gpu,
                                                                 int64_t bytes) {
  const OnGpu here(*gpu);
  void* data = nullptr;
  const CUresult result = gpu->driver().cuMemHostAlloc(&data, bytes, CU_MEMHOSTALLOC_PORTABLE);
  if (result != CUDA_SUCCESS) {
    return Annotate(gpu->Failed(result, "cuMemHostAlloc"),
                    absl::StrFormat("no %s of pinned memory", FormatBytes(bytes)));
  }
  return std::unique_ptr<PinnedBytes>(
      new PinnedBytes(std::move(gpu), static_cast<std::byte*>(data), bytes));
}

PinnedBytes::~PinnedBytes() {
  if (!gpu_->health().given_up().ok()) return;
  const OnGpu here(*gpu_);
  gpu_->driver().cuMemFreeHost(data_);
}

absl::Status Staging::Reserve(int64_t bytes) {
  std::lock_guard lock(mutex_);
  for (const Region& region : regions_) {
    if (region.memory->bytes() >= bytes) return absl::OkStatus();
  }
  if (bytes == 0) return absl::OkStatus();
  AGMM_ASSIGN_OR_RETURN(auto memory, PinnedBytes::Create(gpu_, std::max(bytes, kLeastBytes)));
  regions_.push_back({std::move(memory), {}});
  return absl::OkStatus();
}

std::byte* Staging::Take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  const int64_t room = RoundUp(bytes, kLineBytes);
  for (Region& region : regions_) {
    int64_t begin = 0;
    for (const auto& [offset, length] : region.taken) {
      if (offset - begin >= room) break;
      begin = offset + length;
    }
    if (begin + bytes > region.memory->bytes()) continue;
    region.taken[begin] = room;
    return region.memory->data() + begin;
  }
  return nullptr;
}

void Staging::Give(std::byte* taken) {
  std::lock_guard lock(mutex_);
  for (Region& region : regions_) {
    const int64_t offset = taken - region.memory->data();
    if (offset >= 0 && offset < region.memory->bytes() && region.taken.erase(offset) > 0) return;
  }
}

int64_t Staging::bytes() const {
  std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const Region& region : regions_) bytes += region.memory->bytes();
  return bytes;
}

}  // namespace agmm
