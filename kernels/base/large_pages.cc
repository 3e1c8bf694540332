#include "kernels/base/large_pages.h"

#include <sys/mman.h>

#include <cerrno>

#include "kernels/base/units.h"

namespace agmm {
namespace {

// As in <linux/mman.h>, which older libraries lack.
constexpr int kPopulateRead = 22, kCollapse = 25;
constexpr int64_t kPageBytes = 4096;

// Returns true if madvise failed because the machine does not support this, not because large pages
// ran out.
bool Missing(int result) {
  return result != 0 && (errno == EINVAL || errno == ENOSYS || errno == EPERM);
}

// Reserves `bytes` of addresses that begin `wanted` bytes after a large page does.
void* Reserve(int64_t bytes, int64_t wanted) {
  const int64_t size = RoundUp(bytes, kPageBytes);
  // Has room to move the beginning to a large page; the rest is unmapped below.
  const int64_t room = size + kLargePageBytes;
  void* const reserved =
      mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(reserved);
  const int64_t have = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % kLargePageBytes);
  const int64_t shift = (wanted - have + kLargePageBytes) % kLargePageBytes;
  if (shift > 0) munmap(begin, shift);
  munmap(begin + shift + size, room - shift - size);
  return begin + shift;
}

}  // namespace

void* MapShared(int64_t bytes, int protection, int fd, int64_t offset_bytes) {
  void* const reserved = Reserve(bytes, offset_bytes % kLargePageBytes);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  void* const data =
      mmap(reserved, bytes, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, offset_bytes);
  if (data != MAP_FAILED) return data;
  const int error = errno;
  munmap(reserved, bytes);
  errno = error;
  return MAP_FAILED;
}

void* ReserveLike(const void* data, int64_t bytes) {
  return Reserve(bytes, static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % kLargePageBytes));
}

bool MakeLargePages(std::byte* data, int64_t bytes) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
  const int64_t begin = RoundUp(address, kLargePageBytes) - address;
  const int64_t end = (address + bytes) / kLargePageBytes * kLargePageBytes - address;
  if (begin >= end) return true;
  // MADV_COLLAPSE needs one page of each large page to be present.
  for (int64_t at = begin; at < end; at += kLargePageBytes) {
    if (Missing(madvise(data + at, kPageBytes, kPopulateRead))) return false;
  }
  return !Missing(madvise(data + begin, end - begin, kCollapse));
}

void PreferLargePages(std::byte* data, int64_t bytes) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
  const int64_t begin = RoundUp(address, kLargePageBytes) - address;
  const int64_t end = (address + bytes) / kLargePageBytes * kLargePageBytes - address;
  if (begin < end) static_cast<void>(madvise(data + begin, end - begin, MADV_HUGEPAGE));
}

}  // namespace agmm
