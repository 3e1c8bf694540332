// Memory of files in memory (memfd) in large pages, which cost a fault where 512 small ones cost as
// many. Linux gives them on request from 6.1 on, whatever /sys/kernel/mm/transparent_hugepage says,
// short of "deny".
#pragma once

#include <cstddef>
#include <cstdint>

namespace agmm {

inline constexpr int64_t kLargePageBytes = int64_t{2} << 20;

// mmap of `bytes` > 0 of a file from `offset_bytes` on, shared, where its large pages can be mapped
// as such. MAP_FAILED, and errno, where that is not to be had.
void* MapShared(int64_t bytes, int protection, int fd, int64_t offset_bytes);

// Makes large pages of the whole ones in [data, data + bytes), which MapShared has mapped. What
// they hold stays, whoever uses it meanwhile; holes hold zeros. False where the machine has none at
// all; where it has none now, they stay small: a matter of speed alone.
bool MakeLargePages(std::byte* data, int64_t bytes);

// Asks for large pages for memory of this process's own that is yet to be touched. A matter of
// speed alone.
void PreferLargePages(std::byte* data, int64_t bytes);

}  // namespace agmm
