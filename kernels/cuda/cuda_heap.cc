#include "kernels/cuda/cuda_heap.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;
// Memory that stays free for each rank on the GPU: for the workspaces and sums of its lanes, and
// for the kernels that a library loads when they are first used.
constexpr int64_t kReserveBytes = 512 << 20;
// Elements of a fill between two calls of `stop`: a fraction of a millisecond.
constexpr int64_t kFillElements = 1 << 26;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaHeap>> CudaHeap::Create(std::shared_ptr<Gpu> gpu,
                                                           int64_t size_bytes) {
  if (size_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a heap of %d bytes: the size must be positive", size_bytes));
  }
  AGMM_RETURN_IF_ERROR(gpu->health().given_up());
  std::unique_ptr<CudaHeap> heap(new CudaHeap(std::move(gpu), size_bytes));
  const OnGpu here(*heap->gpu_);
  AGMM_RETURN_IF_ERROR(heap->Map());
  AGMM_RETURN_IF_ERROR(heap->MakeChunks());
  return heap;
}

absl::Status CudaHeap::Map() {
  AGMM_ASSIGN_OR_RETURN(const int64_t page, MappedBytes::PageBytes(gpu_));
  size_t free = 0, total = 0;
  AGMM_CUDA_RETURN(*gpu_, cuMemGetInfo, &free, &total);
  // Includes ranks whose heaps already exist, because they use their reserve later.
  const int64_t reserve = gpu_->thread().tenant_count() * kReserveBytes;
  const auto too_large = [&] {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "a heap of %s was requested on %s, where %s of %s are free and %s must stay free for "
        "workspaces and kernels, %s for each device on the GPU; give the device a smaller heap or "
        "free memory of the GPU",
        FormatBytes(size_bytes_), gpu_->where(), FormatBytes(free), FormatBytes(total),
        FormatBytes(reserve), FormatBytes(kReserveBytes)));
  };
  if (RoundUp(size_bytes_, page) > static_cast<int64_t>(free) - reserve) return too_large();
  absl::StatusOr<std::unique_ptr<MappedBytes>> made = MappedBytes::Create(gpu_, size_bytes_);
  if (absl::IsResourceExhausted(made.status())) return too_large();
  AGMM_ASSIGN_OR_RETURN(memory_, std::move(made));
  return absl::OkStatus();
}

absl::Status CudaHeap::MakeChunks() {
  AGMM_ASSIGN_OR_RETURN(stream_, GpuStream::Create(gpu_));
  AGMM_ASSIGN_OR_RETURN(pinned_, PinnedBytes::Create(gpu_, kChunkBytes * chunks_.size()));
  for (size_t i = 0; i < chunks_.size(); ++i) {
    chunks_[i].data = pinned_->data() + i * kChunkBytes;
    AGMM_ASSIGN_OR_RETURN(chunks_[i].copied, events_.Make());
  }
  AGMM_ASSIGN_OR_RETURN(fill_stream_, GpuStream::Create(gpu_));
  AGMM_ASSIGN_OR_RETURN(filled_, events_.Make());
  return absl::OkStatus();
}

std::vector<CudaHeap::Piece> CudaHeap::Cut(const HeapRows& rows) {
  std::vector<Piece> pieces;
  const int64_t bytes = std::min(rows.row_bytes, kChunkBytes);
  if (rows.bytes() == 0) return pieces;
  const int64_t at_once = kChunkBytes / bytes;
  for (int64_t row = 0; row < rows.rows; row += at_once) {
    for (int64_t begin = 0; begin < rows.row_bytes; begin += bytes) {
      pieces.push_back({row, std::min(at_once, rows.rows - row), begin,
                        std::min(bytes, rows.row_bytes - begin)});
    }
  }
  return pieces;
}

RowsEnd CudaHeap::EndAt(const HeapRows& rows, const Piece& piece) const {
  return {address() + rows.offset_bytes + piece.row * rows.pitch_bytes + piece.begin, nullptr,
          rows.pitch_bytes};
}

absl::Status CudaHeap::Await(const Chunk& chunk) {
  if (!hung_.ok()) return hung_;
  // All chunks may be in flight.
  absl::Status status = gpu_->Await(chunk.copied, pinned_->bytes(), "a copy of its heap");
  if (!gpu_->health().given_up().ok()) hung_ = status;
  return status;
}

absl::Status CudaHeap::Write(const HeapRows& to, const Rows& from) {
  AGMM_RETURN_IF_ERROR(CheckCopy(to, from, size_bytes_));
  const OnGpu here(*gpu_);
  std::lock_guard lock(mutex_);
  // Checked with the lock held, because the GPU may be given up while this waits for it.
  AGMM_RETURN_IF_ERROR(gpu_->health().given_up());
  int turn = 0;
  for (const Piece& piece : Cut(to)) {
    const Chunk& chunk = chunks_[turn++ % chunks_.size()];
    AGMM_RETURN_IF_ERROR(Await(chunk));
    CopyRows({from.data + piece.row * from.pitch_bytes + piece.begin, piece.rows, piece.bytes,
              from.pitch_bytes},
             {chunk.data, piece.rows, piece.bytes, piece.bytes});
    AGMM_RETURN_IF_ERROR(CopyRowsOn(*gpu_, {0, chunk.data, piece.bytes}, EndAt(to, piece),
                                    piece.rows, piece.bytes, stream_->get()));
    AGMM_CUDA_RETURN(*gpu_, cuEventRecord, chunk.copied, stream_->get());
  }
  for (const Chunk& chunk : chunks_) AGMM_RETURN_IF_ERROR(Await(chunk));
  return absl::OkStatus();
}

absl::Status CudaHeap::Read(const HeapRows& from, const Rows& to) {
  AGMM_RETURN_IF_ERROR(CheckCopy(from, to, size_bytes_));
  const OnGpu here(*gpu_);
  std::lock_guard lock(mutex_);
  const std::vector<Piece> pieces = Cut(from);
  const auto chunk = [&](size_t index) -> const Chunk& { return chunks_[index % chunks_.size()]; };
  // One piece is in flight while the host copies the previous piece.
  for (size_t next = 0; next <= pieces.size(); ++next) {
    if (next < pieces.size()) {
      const Piece& piece = pieces[next];
      AGMM_RETURN_IF_ERROR(Await(chunk(next)));
      AGMM_RETURN_IF_ERROR(CopyRowsOn(*gpu_, EndAt(from, piece), {0, chunk(next).data, piece.bytes},
                                      piece.rows, piece.bytes, stream_->get()));
      AGMM_CUDA_RETURN(*gpu_, cuEventRecord, chunk(next).copied, stream_->get());
    }
    if (next == 0) continue;
    const Piece& piece = pieces[next - 1];
    AGMM_RETURN_IF_ERROR(Await(chunk(next - 1)));
    CopyRows({chunk(next - 1).data, piece.rows, piece.bytes, piece.bytes},
             {to.data + piece.row * to.pitch_bytes + piece.begin, piece.rows, piece.bytes,
              to.pitch_bytes});
  }
  return absl::OkStatus();
}

absl::Status CudaHeap::Fill(const HeapRows& to, const FillSpec& fill, DType dtype,
                            int64_t first_index, int64_t index_stride,
                            absl::FunctionRef<bool()> stop) {
  AGMM_RETURN_IF_ERROR(CheckInside(to, size_bytes_));
  const OnGpu here(*gpu_);
  std::lock_guard lock(fill_mutex_);
  AGMM_RETURN_IF_ERROR(gpu_->health().given_up());
  elementwise::Fill work;
  work.fill = fill;
  work.most = LargestBelowOne(dtype);
  work.cols = to.row_bytes / SizeOf(dtype);
  work.index_stride = index_stride;
  const int64_t at_once = std::max<int64_t>(1, kFillElements / std::max<int64_t>(1, work.cols));
  for (int64_t row = 0; row < to.rows; row += at_once) {
    if (stop()) return absl::CancelledError("the fill was stopped");
    work.to = {reinterpret_cast<void*>(address() + to.offset_bytes + row * to.pitch_bytes),
               to.pitch_bytes, dtype};
    work.rows = std::min(at_once, to.rows - row);
    work.first_index = first_index + row * index_stride;
    AGMM_RETURN_IF_ERROR(
        gpu_->Check(gpu_->kernels().Launch(work, fill_stream_->get()), "cuLaunchKernel"));
    AGMM_CUDA_RETURN(*gpu_, cuEventRecord, filled_, fill_stream_->get());
    AGMM_RETURN_IF_ERROR(gpu_->Await(filled_, work.rows * to.row_bytes, "a fill of its heap"));
  }
  return absl::OkStatus();
}

}  // namespace agmm
