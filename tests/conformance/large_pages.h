// What memory is made of.
#pragma once

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/base/large_pages.h"
#include "kernels/cpu/cpu_heap.h"

namespace agmm::test {

// Whether this machine has any for the files of heaps.
inline bool HasLargePages() {
  const auto heap = CpuHeap::Create(kLargePageBytes);
  return heap.ok() && MakeLargePages((*heap)->host().data(), kLargePageBytes);
}

// The large pages of the mapping that begins at `data`.
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
