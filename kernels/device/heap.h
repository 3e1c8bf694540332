// One rank's symmetric memory, addressed by offset. Pointers into it leave the device layer only
// through `host()`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/schedule/problem.h"

namespace agmm {

class Heap {
 public:
  virtual ~Heap() = default;
  virtual int64_t size_bytes() const = 0;
  // The memory for host code; empty if the host cannot address it.
  virtual absl::Span<std::byte> host() = 0;
  // Takes memory in large pages for the bytes `written`, which are about to be written, and for
  // their neighbourhood within the bytes of their `tensor`. A hint: contents stay. Thread-safe.
  virtual void CommitPages(const Range& written, const Range& tensor) {
    static_cast<void>(written), static_cast<void>(tensor);
  }
  // A file descriptor that another process of this user can map, or -1. Owned by the heap.
  virtual int fd() const = 0;
};

}  // namespace agmm
