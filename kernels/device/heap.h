// One rank's symmetric memory, addressed by offset. Pointers into it never leave the device layer
// except through `host()`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace agmm {

class Heap {
 public:
  virtual ~Heap() = default;
  virtual int64_t size_bytes() const = 0;
  // The memory as host code sees it; empty where the host cannot address it.
  virtual absl::Span<std::byte> host() = 0;
  // A file descriptor that another process of this user can map, or -1. Owned by the heap.
  virtual int fd() const = 0;
};

}  // namespace agmm
