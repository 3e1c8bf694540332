// The page sizes of memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/base/large_pages.h"

namespace agmm::test {

// Returns true if this machine has large pages for files in memory, without using the code under
// test.
inline bool HasLargePages() {
  constexpr size_t kLarge = size_t{2} << 20;
  const int fd = memfd_create("large-pages", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, kLarge) != 0) return false;
  void* const room = mmap(nullptr, 2 * kLarge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* const aligned =
      reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(room) + kLarge - 1) / kLarge * kLarge);
  if (mmap(aligned, kLarge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != aligned)
    return false;
  close(fd);
  aligned[0] = 1;
  const bool has = madvise(aligned, kLarge, 25 /* MADV_COLLAPSE */) == 0;
  munmap(room, 2 * kLarge);
  return has;
}

// Returns the number of large pages in the mapping that begins at `data`.
inline int64_t LargePages(const void* data) {
  std::ifstream maps("/proc/self/smaps");
  const std::string begin = absl::StrFormat("%x-", reinterpret_cast<uintptr_t>(data));
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" kB") == std::string::npos) here = absl::StartsWith(line, begin);
    int64_t kib = 0;
    if (here && std::sscanf(line.c_str(), "ShmemPmdMapped: %ld kB", &kib) == 1)
      return (kib << 10) / kLargePageBytes;
  }
  return 0;
}

}  // namespace agmm::test
