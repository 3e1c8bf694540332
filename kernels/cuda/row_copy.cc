#include "kernels/cuda/row_copy.h"

#include "kernels/schedule/problem.h"

namespace agmm {
namespace {

// CU_DEVICE_ATTRIBUTE_MAX_PITCH of all GPUs so far. Rows of schedules are always closer together,
// so no check is needed here.
constexpr int64_t kMostPitchBytes = (int64_t{1} << 31) - 1;
static_assert(kMaxDimension * static_cast<int64_t>(sizeof(float)) + kRowAlignBytes <=
              kMostPitchBytes);

}  // namespace

absl::Status CopyRowsOn(Gpu& gpu, const RowsEnd& from, const RowsEnd& to, int64_t rows,
                        int64_t row_bytes, CUstream stream) {
  if (rows == 0 || row_bytes == 0) return absl::OkStatus();
  const bool dense = rows == 1 || (from.pitch_bytes == row_bytes && to.pitch_bytes == row_bytes);
  const size_t bytes = rows * row_bytes;
  if (!dense) {
    CUDA_MEMCPY2D work = {};
    work.srcMemoryType = from.host != nullptr ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    work.srcHost = from.host;
    work.srcDevice = from.device;
    work.srcPitch = from.pitch_bytes;
    work.dstMemoryType = to.host != nullptr ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    work.dstHost = to.host;
    work.dstDevice = to.device;
    work.dstPitch = to.pitch_bytes;
    work.WidthInBytes = row_bytes;
    work.Height = rows;
    AGMM_CUDA_RETURN(gpu, cuMemcpy2DAsync, &work, stream);
  } else if (from.host != nullptr) {
    AGMM_CUDA_RETURN(gpu, cuMemcpyHtoDAsync, to.device, from.host, bytes, stream);
  } else if (to.host != nullptr) {
    AGMM_CUDA_RETURN(gpu, cuMemcpyDtoHAsync, to.host, from.device, bytes, stream);
  } else {
    AGMM_CUDA_RETURN(gpu, cuMemcpyDtoDAsync, to.device, from.device, bytes, stream);
  }
  return absl::OkStatus();
}

}  // namespace agmm
