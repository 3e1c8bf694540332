// One rank's symmetric memory, addressed by offset. Pointers into it never leave the device layer
// except through `host()`.
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
  // The memory as host code sees it; empty where the host cannot address it.
  virtual absl::Span<std::byte> host() = 0;
  // Bytes `written` of a tensor that has the bytes `tensor` are about to be written: takes memory
  // for them, and what lies beside them in the tensor, in as large pages as there are. A hint:
  // contents stay. Thread-safe.
  virtual void Back(const Range& written, const Range& tensor) {
    static_cast<void>(written), static_cast<void>(tensor);
  }
  // A file descriptor that another process of this user can map, or -1. Owned by the heap.
  virtual int fd() const = 0;
};

}  // namespace agmm
