#include "kernels/cpu/cpu_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "kernels/base/large_pages.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// Returns the memory that is available without swapping, as reported by the kernel; unlimited if it
// reports nothing, so that only the mapping itself can fail.
int64_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (meminfo >> key >> kib) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") return kib << 10;
  }
  return std::numeric_limits<int64_t>::max();
}

// Large pages are requested in stretches, because each call interrupts every processor.
constexpr int64_t kStretchBytes = 4 * kLargePageBytes;
// Elements filled between two calls of `stop`: a fraction of a millisecond.
constexpr int64_t kFillPiece = 1 << 16;

absl::Status Refused(int64_t size_bytes, const char* call) {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "a heap of %s could not be created: %s: %s; %s are available; give the device a "
      "smaller heap",
      FormatBytes(size_bytes), call, std::strerror(errno), FormatBytes(AvailableBytes())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuHeap>> CpuHeap::Create(int64_t size_bytes) {
  if (size_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a heap of %d bytes: the size must be positive", size_bytes));
  }
  if (const int64_t available = AvailableBytes(); size_bytes > available) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "a heap of %s was requested and %s are available; give the device a smaller "
        "heap or free memory",
        FormatBytes(size_bytes), FormatBytes(available)));
  }
  const int fd = memfd_create("agmm-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Refused(size_bytes, "memfd_create");
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (ftruncate(fd, size_bytes) != 0) return Refused(size_bytes, "ftruncate");
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return Refused(size_bytes, "fcntl(F_ADD_SEALS)");
  void* data = MapShared(size_bytes, PROT_READ | PROT_WRITE, fd, 0);
  if (data == MAP_FAILED) return Refused(size_bytes, "mmap");
  std::move(close_fd).Cancel();
  return std::unique_ptr<CpuHeap>(new CpuHeap(fd, static_cast<std::byte*>(data), size_bytes));
}

CpuHeap::CpuHeap(int fd, std::byte* data, int64_t size_bytes)
    : fd_(fd), data_(data), size_bytes_(size_bytes), backed_(size_bytes / kLargePageBytes) {}

absl::Status CpuHeap::Write(const HeapRows& to, const Rows& from) {
  AGMM_RETURN_IF_ERROR(CheckCopy(to, from, size_bytes_));
  CopyRows(from, At(to));
  return absl::OkStatus();
}

absl::Status CpuHeap::Read(const HeapRows& from, const Rows& to) {
  AGMM_RETURN_IF_ERROR(CheckCopy(from, to, size_bytes_));
  CopyRows(At(from), to);
  return absl::OkStatus();
}

absl::Status CpuHeap::Fill(const HeapRows& to, const FillSpec& fill, DType dtype,
                           int64_t first_index, int64_t index_stride,
                           absl::FunctionRef<bool()> stop) {
  AGMM_RETURN_IF_ERROR(CheckInside(to, size_bytes_));
  const int64_t cols = to.row_bytes / SizeOf(dtype);
  for (int64_t row = 0; row < to.rows; ++row) {
    const int64_t begin = to.offset_bytes + row * to.pitch_bytes;
    CommitPages({begin, begin + to.row_bytes},
                {to.offset_bytes, to.offset_bytes + (to.rows - 1) * to.pitch_bytes + to.row_bytes});
    for (int64_t col = 0; col < cols; col += kFillPiece) {
      if (stop()) return absl::CancelledError("the fill was stopped");
      FillValues(fill, dtype, first_index + row * index_stride + col,
                 std::min(kFillPiece, cols - col), data_ + begin + col * SizeOf(dtype));
    }
  }
  return absl::OkStatus();
}

void CpuHeap::CommitPages(const Range& written, const Range& tensor) {
  if (!large_pages_.load(std::memory_order_relaxed)) return;
  // Only pages that belong to this tensor alone.
  const Range asked{std::max(written.begin / kStretchBytes * kStretchBytes, tensor.begin),
                    std::min(RoundUp(written.end, kStretchBytes), tensor.end)};
  const int64_t end = asked.end / kLargePageBytes;
  for (int64_t page = CeilDiv(asked.begin, kLargePageBytes); page < end; ++page) {
    int64_t behind = page;
    while (behind < end && !backed_[behind].exchange(true, std::memory_order_relaxed)) ++behind;
    if (behind == page) continue;
    if (!MakeLargePages(data_ + page * kLargePageBytes, (behind - page) * kLargePageBytes))
      large_pages_.store(false, std::memory_order_relaxed);
    page = behind;
  }
}

CpuHeap::~CpuHeap() {
  munmap(data_, size_bytes_);
  close(fd_);
}

}  // namespace agmm
