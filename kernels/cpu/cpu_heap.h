// A heap in a memfd: mapped by this process, and by any other that is given the descriptor.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/heap.h"

namespace agmm {

class CpuHeap final : public Heap {
 public:
  // `size_bytes` of zeroes, page aligned, committed as they are touched. The size is sealed: no
  // holder of the descriptor can shrink it under another's feet. Errors: INVALID_ARGUMENT for a
  // size that is not positive; RESOURCE_EXHAUSTED when the machine has not that much memory
  // available now, or refuses to map it.
  static absl::StatusOr<std::unique_ptr<CpuHeap>> Create(int64_t size_bytes);
  ~CpuHeap() override;
  CpuHeap(const CpuHeap&) = delete;
  CpuHeap& operator=(const CpuHeap&) = delete;

  int64_t size_bytes() const override { return size_bytes_; }
  absl::Span<std::byte> host() override { return {data_, static_cast<size_t>(size_bytes_)}; }
  void Back(const Range& written, const Range& tensor) override;
  int fd() const override { return fd_; }

 private:
  CpuHeap(int fd, std::byte* data, int64_t size_bytes);

  const int fd_;
  std::byte* const data_;
  const int64_t size_bytes_;
  // Large pages that somebody has asked for, by their place in the file; none are asked for once
  // there are none.
  std::vector<std::atomic<bool>> backed_;
  std::atomic<bool> large_pages_{true};
};

}  // namespace agmm
