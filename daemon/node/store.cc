#include "daemon/node/store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {

struct TensorStore::Entry {
  Mesh mesh;
  Tensor tensor;
  int64_t offset_bytes = 0, pitch_bytes = 0;
};

TensorStore::TensorStore(int first_rank, std::vector<Heap*> heaps, Dropped dropped)
    : first_rank_(first_rank), heaps_(std::move(heaps)), dropped_(std::move(dropped)) {}

void TensorStore::EndTransfers(const absl::Status& why) {
  {
    std::lock_guard lock(generation_mutex_);
    std::lock_guard reasons(mutex_);
    ended_.emplace(local_generation_++, why);
    if (ended_.size() > kRememberedEnds) ended_.erase(ended_.begin());
  }
  if (on_generation_end_) on_generation_end_(why);
}

absl::Status TensorStore::ended(uint64_t local_generation) const {
  std::lock_guard lock(mutex_);
  if (const auto it = ended_.find(local_generation); it != ended_.end()) return it->second;
  return absl::AbortedError("the world has changed many times since");
}

absl::Status TensorStore::Place(const v1::Tensor& tensor) {
  AGMM_ASSIGN_OR_RETURN(PlacedTensor placed, FromProto(tensor.spec()));
  const int64_t bytes = ShardBytes(placed.mesh, placed.tensor);
  const int64_t offset = tensor.offset_bytes();
  if (tensor.shard_bytes() < bytes || offset < 0 || offset % kRowAlignBytes != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor %d was placed in %d B at offset %d; its shards need %d B at a multiple of %d",
        tensor.tensor_id(), tensor.shard_bytes(), offset, bytes, kRowAlignBytes));
  }
  for (int rank : placed.mesh.ranks) {
    const int local = DeviceOf(rank);
    if (local < 0) continue;
    const int64_t heap_bytes = heaps_[local]->size_bytes();
    if (tensor.shard_bytes() > heap_bytes - offset) {
      return absl::OutOfRangeError(absl::StrFormat(
          "tensor %d was placed at bytes %d to %d of rank %d, whose heap has %d; give every daemon "
          "the heaps that the configuration says",
          tensor.tensor_id(), offset, offset + tensor.shard_bytes(), rank, heap_bytes));
    }
  }
  const int64_t pitch = ShardPitchBytes(placed.mesh, placed.tensor);
  auto entry = std::make_shared<const Entry>(
      Entry{std::move(placed.mesh), std::move(placed.tensor), offset, pitch});
  std::lock_guard lock(mutex_);
  tensors_[tensor.tensor_id()] = std::move(entry);
  return absl::OkStatus();
}

void TensorStore::Drop(uint64_t tensor_id) {
  std::unique_lock lock(mutex_);
  const auto dropped = tensors_.extract(tensor_id);
  lock.unlock();
  if (!dropped.empty()) ReportDropped(*dropped.mapped());
}

void TensorStore::DropAll() {
  std::unique_lock lock(mutex_);
  const auto dropped = std::exchange(tensors_, {});
  lock.unlock();
  for (const auto& [id, entry] : dropped) ReportDropped(*entry);
}

void TensorStore::ReportDropped(const Entry& entry) const {
  if (dropped_ == nullptr) return;
  for (int rank : entry.mesh.ranks) {
    if (const int local = DeviceOf(rank); local >= 0)
      dropped_(local, entry.offset_bytes, ShardBytes(entry.mesh, entry.tensor));
  }
}

int TensorStore::DeviceOf(int rank) const {
  const int local = rank - first_rank_;
  return local < static_cast<int>(heaps_.size()) ? std::max(local, -1) : -1;
}

std::shared_ptr<const TensorStore::Entry> TensorStore::Find(uint64_t tensor_id) const {
  std::lock_guard lock(mutex_);
  const auto it = tensors_.find(tensor_id);
  return it == tensors_.end() ? nullptr : it->second;
}

absl::StatusOr<std::vector<LocalShard>> TensorStore::Shards(uint64_t tensor_id) const {
  const std::shared_ptr<const Entry> entry = Find(tensor_id);
  if (entry == nullptr)
    return absl::NotFoundError(absl::StrFormat("tensor %d has no place on this node", tensor_id));
  std::vector<LocalShard> shards;
  for (Rank rank = 0; rank < entry->mesh.size(); ++rank) {
    const int local = DeviceOf(entry->mesh.ranks[rank]);
    const Block block = ShardBlock(entry->mesh, entry->tensor, 0, rank);
    if (local < 0 || block.empty()) continue;
    shards.push_back({block.rows, block.cols, entry->tensor.cols, entry->tensor.dtype,
                      entry->pitch_bytes, entry->mesh.ranks[rank], heaps_[local],
                      entry->offset_bytes});
  }
  return shards;
}

absl::StatusOr<Rows> TensorStore::Resolve(int from_node, const BulkBlock& block, bool write) {
  while (AGMM_FAILPOINT("store.hold")) absl::SleepFor(absl::Milliseconds(1));
  const std::shared_ptr<const Entry> entry = Find(block.tensor);
  const int local = DeviceOf(block.rank);
  absl::Span<const int> ranks;
  if (entry != nullptr) ranks = entry->mesh.ranks;
  const auto rank = std::find(ranks.begin(), ranks.end(), block.rank);
  if (rank == ranks.end() || local < 0) {
    return absl::NotFoundError(absl::StrFormat("rank %d holds no shard of tensor %d on this node",
                                               block.rank, block.tensor));
  }
  const Block shard =
      ShardBlock(entry->mesh, entry->tensor, 0, static_cast<Rank>(rank - ranks.begin()));
  const auto inside = [](int64_t begin, int64_t end, const Range& range) {
    return begin >= 0 && begin <= end && end <= range.size();
  };
  if (!inside(block.row_begin, block.row_end, shard.rows) ||
      !inside(block.col_begin, block.col_end, shard.cols)) {
    return absl::OutOfRangeError(absl::StrFormat(
        "rows [%d, %d) x columns [%d, %d) are outside the %d x %d shard of tensor %d on rank %d",
        block.row_begin, block.row_end, block.col_begin, block.col_end, shard.rows.size(),
        shard.cols.size(), block.tensor, block.rank));
  }
  const int64_t element = SizeOf(entry->tensor.dtype);
  const auto row_offset = [&](int64_t row) {
    return entry->offset_bytes + row * entry->pitch_bytes;
  };
  if (write) {
    heaps_[local]->CommitPages({row_offset(block.row_begin), row_offset(block.row_end)},
                               {row_offset(0), row_offset(shard.rows.size())});
  }
  HeapRows place;
  place.offset_bytes = row_offset(block.row_begin) + block.col_begin * element;
  place.row_bytes = (block.col_end - block.col_begin) * element;
  place.rows = place.row_bytes == 0 ? 0 : block.row_end - block.row_begin;
  place.pitch_bytes = entry->pitch_bytes;
  // A whole row may be written with its padding.
  return RowsAt(heaps_[local], place,
                /*padded=*/block.col_begin == 0 && block.col_end == shard.cols.size());
}

}  // namespace agmm
