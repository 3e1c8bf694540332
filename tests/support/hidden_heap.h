// A heap whose memory the host cannot address, like that of a GPU: all accesses go through Write,
// Read and Fill.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/types/span.h"
#include "kernels/base/status.h"
#include "kernels/device/heap.h"

namespace agmm::test {

class HiddenHeap : public Heap {
 public:
  // `memory` must outlive the heap; the test examines it.
  explicit HiddenHeap(absl::Span<std::byte> memory) : memory_(memory) {}

  // From here on every access fails with `status`.
  void Fail(absl::Status status) { status_ = std::move(status); }

  int64_t size_bytes() const override { return static_cast<int64_t>(memory_.size()); }
  absl::Span<std::byte> host() override { return {}; }
  int fd() const override { return -1; }
  absl::Status Write(const HeapRows& to, const Rows& from) override {
    AGMM_RETURN_IF_ERROR(status_);
    AGMM_RETURN_IF_ERROR(CheckCopy(to, from, size_bytes()));
    CopyRows(from, At(to));
    return absl::OkStatus();
  }
  absl::Status Read(const HeapRows& from, const Rows& to) override {
    AGMM_RETURN_IF_ERROR(status_);
    AGMM_RETURN_IF_ERROR(CheckCopy(from, to, size_bytes()));
    CopyRows(At(from), to);
    return absl::OkStatus();
  }
  absl::Status Fill(const HeapRows& to, const FillSpec& fill, DType dtype, int64_t first_index,
                    int64_t index_stride, absl::FunctionRef<bool()> stop) override {
    AGMM_RETURN_IF_ERROR(status_);
    AGMM_RETURN_IF_ERROR(CheckInside(to, size_bytes()));
    for (int64_t row = 0; row < to.rows; ++row) {
      if (stop()) return absl::CancelledError("the fill was stopped");
      FillValues(fill, dtype, first_index + row * index_stride, to.row_bytes / SizeOf(dtype),
                 At(to).data + row * to.pitch_bytes);
    }
    return absl::OkStatus();
  }

 private:
  Rows At(const HeapRows& place) {
    return {memory_.data() + place.offset_bytes, place.rows, place.row_bytes, place.pitch_bytes};
  }

  const absl::Span<std::byte> memory_;
  absl::Status status_;
};

}  // namespace agmm::test
