#include "kernels/cuda/mapped_bytes.h"

#include <utility>

#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

CUmemAllocationProp KindOf(const Gpu& gpu) {
  CUmemAllocationProp kind = {};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind.location.id = gpu.device();
  return kind;
}

}  // namespace

absl::StatusOr<int64_t> MappedBytes::PageBytes(const std::shared_ptr<Gpu>& gpu) {
  const CUmemAllocationProp kind = KindOf(*gpu);
  size_t page = 0;
  AGMM_CUDA_RETURN(*gpu, cuMemGetAllocationGranularity, &page, &kind,
                   CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  return static_cast<int64_t>(page);
}

absl::StatusOr<std::unique_ptr<MappedBytes>> MappedBytes::Create(std::shared_ptr<Gpu> gpu,
                                                                 int64_t bytes) {
  const OnGpu here(*gpu);
  AGMM_ASSIGN_OR_RETURN(const int64_t page, PageBytes(gpu));
  std::unique_ptr<MappedBytes> made(new MappedBytes(std::move(gpu), RoundUp(bytes, page)));
  AGMM_RETURN_IF_ERROR(made->Map(page));
  return made;
}

absl::Status MappedBytes::Map(int64_t page) {
  const CUmemAllocationProp kind = KindOf(*gpu_);
  AGMM_CUDA_RETURN(*gpu_, cuMemAddressReserve, &address_, bytes_, page, 0, 0);
  AGMM_CUDA_RETURN(*gpu_, cuMemCreate, &memory_, bytes_, &kind, 0);
  created_ = true;
  AGMM_CUDA_RETURN(*gpu_, cuMemMap, address_, bytes_, 0, memory_, 0);
  mapped_ = true;
  return MapFor(*gpu_);
}

absl::Status MappedBytes::MapFor(const Gpu& gpu) {
  std::lock_guard lock(mutex_);
  if (mapped_for_.count(gpu.number()) > 0) return absl::OkStatus();
  const OnGpu here(*gpu_);
  CUmemAccessDesc right = {};
  right.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  right.location.id = gpu.device();
  right.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  AGMM_CUDA_RETURN(*gpu_, cuMemSetAccess, address_, bytes_, &right, 1);
  mapped_for_.insert(gpu.number());
  return absl::OkStatus();
}

MappedBytes::~MappedBytes() {
  if (!gpu_->health().given_up().ok()) return;
  const OnGpu here(*gpu_);
  if (mapped_) gpu_->driver().cuMemUnmap(address_, bytes_);
  if (created_) gpu_->driver().cuMemRelease(memory_);
  if (address_ != 0) gpu_->driver().cuMemAddressFree(address_, bytes_);
}

}  // namespace agmm
