// Large pages for files in memory (memfd): one page fault instead of 512. Since 6.1 Linux makes
// them on request, unless /sys/kernel/mm/transparent_hugepage says "deny".
#pragma once

#include <cstddef>
#include <cstdint>

namespace agmm {

inline constexpr int64_t kLargePageBytes = int64_t{2} << 20;

// Maps `bytes` > 0 of a file from `offset_bytes` on, shared, at an address where its large pages
// can be mapped as such. Returns MAP_FAILED and sets errno on failure.
void* MapShared(int64_t bytes, int protection, int fd, int64_t offset_bytes);

// Reserves `bytes` > 0 of addresses, without access, to which the mapping at `data` can move with
// its large pages. Returns MAP_FAILED and sets errno on failure.
void* ReserveLike(const void* data, int64_t bytes);

// Turns all complete large-page ranges in [data, data + bytes), which MapShared has mapped, into
// large pages. The contents stay, even while other threads use them. Returns false if the machine
// does not support large pages; true if it has run out of them, because only speed depends on them.
bool MakeLargePages(std::byte* data, int64_t bytes);

// Asks for large pages for private memory that has not been touched yet.
void PreferLargePages(std::byte* data, int64_t bytes);

}  // namespace agmm
