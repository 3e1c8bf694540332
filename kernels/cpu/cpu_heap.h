// A heap in a memfd, mapped by this process and by any other that gets its descriptor.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/heap.h"

namespace agmm {

class CpuHeap final : public Heap {
 public:
  // Creates a heap of `size_bytes` zeros, page aligned, committed when they are touched. The size
  // is sealed, so that no holder of the descriptor can shrink the memory that others use. Errors:
  // INVALID_ARGUMENT for a size that is not positive; RESOURCE_EXHAUSTED if the machine does not
  // have that much memory available now, or refuses to map it.
  static absl::StatusOr<std::unique_ptr<CpuHeap>> Create(int64_t size_bytes);
  ~CpuHeap() override;
  CpuHeap(const CpuHeap&) = delete;
  CpuHeap& operator=(const CpuHeap&) = delete;

  int64_t size_bytes() const override { return size_bytes_; }
  absl::Span<std::byte> host() override { return {data_, static_cast<size_t>(size_bytes_)}; }
  absl::Status Write(const HeapRows& to, const Rows& from) override;
  absl::Status Read(const HeapRows& from, const Rows& to) override;
  absl::Status Fill(const HeapRows& to, const FillSpec& fill, DType dtype, int64_t first_index,
                    int64_t index_stride, absl::FunctionRef<bool()> stop) override;
  void CommitPages(const Range& written, const Range& tensor) override;
  int fd() const override { return fd_; }

 private:
  // Requires rows inside the heap.
  Rows At(const HeapRows& place) const {
    return {data_ + place.offset_bytes, place.rows, place.row_bytes, place.pitch_bytes};
  }
  CpuHeap(int fd, std::byte* data, int64_t size_bytes);

  const int fd_;
  std::byte* const data_;
  const int64_t size_bytes_;
  // By large page of the file: true if it was requested. No more are requested once the machine has
  // refused one.
  std::vector<std::atomic<bool>> backed_;
  std::atomic<bool> large_pages_{true};
};

}  // namespace agmm
