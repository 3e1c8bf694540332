// A heap in the memory of a GPU, mapped for the GPU itself and for the GPUs whose ranks use it. The
// heap of a GPU that is given up is read-only, because the GPU's work may still write to it.
#pragma once

#include <cuda.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/mapped_bytes.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/row_copy.h"
#include "kernels/cuda/streams.h"
#include "kernels/device/heap.h"

namespace agmm {

class CudaHeap final : public Heap {
 public:
  // Errors: INVALID_ARGUMENT for a size that is not positive; RESOURCE_EXHAUSTED, with the
  // requested, free, total and reserved bytes, if the GPU has less memory.
  static absl::StatusOr<std::unique_ptr<CudaHeap>> Create(std::shared_ptr<Gpu> gpu,
                                                          int64_t size_bytes);
  // Requires that nothing uses the heap.
  ~CudaHeap() override = default;
  CudaHeap(const CudaHeap&) = delete;
  CudaHeap& operator=(const CudaHeap&) = delete;

  int64_t size_bytes() const override { return size_bytes_; }
  absl::Span<std::byte> host() override { return {}; }
  absl::Status Write(const HeapRows& to, const Rows& from) override;
  absl::Status Read(const HeapRows& from, const Rows& to) override;
  absl::Status Fill(const HeapRows& to, const FillSpec& fill, DType dtype, int64_t first_index,
                    int64_t index_stride, absl::FunctionRef<bool()> stop) override;
  int fd() const override { return -1; }

  CUdeviceptr address() const { return memory_->address(); }
  // As MappedBytes::MapFor.
  absl::Status MapFor(const Gpu& gpu) { return memory_->MapFor(gpu); }

 private:
  // A piece of pinned memory, and the end of the copy that uses it.
  struct Chunk {
    std::byte* data = nullptr;
    CUevent copied = nullptr;
  };
  // A part of rows that fits in a chunk.
  struct Piece {
    int64_t row = 0, rows = 0, begin = 0, bytes = 0;  // `bytes` of each row, from `begin` on
  };

  CudaHeap(std::shared_ptr<Gpu> gpu, int64_t size_bytes)
      : gpu_(gpu), size_bytes_(size_bytes), events_(std::move(gpu)) {}
  absl::Status Map();
  absl::Status MakeChunks();
  static std::vector<Piece> Cut(const HeapRows& rows);
  RowsEnd EndAt(const HeapRows& rows, const Piece& piece) const;
  // Blocks until the copy of the chunk has ended, unless a copy on the stream never ends.
  absl::Status Await(const Chunk& chunk);

  const std::shared_ptr<Gpu> gpu_;
  const int64_t size_bytes_;
  std::unique_ptr<MappedBytes> memory_;

  GpuEvents events_;
  std::mutex mutex_;  // one Write or Read at a time uses the stream and the chunks
  std::unique_ptr<GpuStream> stream_;
  std::unique_ptr<PinnedBytes> pinned_;
  std::array<Chunk, 2> chunks_;
  absl::Status hung_;  // OK, or why no further copy on the stream will end
  // Fills have their own stream, because they take long and must not delay copies.
  std::mutex fill_mutex_;
  std::unique_ptr<GpuStream> fill_stream_;
  CUevent filled_ = nullptr;
};

}  // namespace agmm
