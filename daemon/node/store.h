// Maps tensor ids to the memory of this node's shards. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/transport/types.h"
#include "kernels/device/heap.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// A part of a tensor in the memory of one of this node's devices: rows x cols of the tensor.
struct LocalShard {
  Range rows, cols;
  int64_t tensor_cols = 0;
  DType dtype = DType::kF32;
  int64_t pitch_bytes = 0;
  int rank = 0;  // of the world
  Heap* heap = nullptr;
  int64_t offset_bytes = 0;  // in the heap

  HeapRows place() const {
    return {offset_bytes, rows.size(), cols.size() * SizeOf(dtype), pitch_bytes};
  }
};

class TensorStore : public BulkStore {
 public:
  // Called when the bytes [offset, offset + bytes) of local device `local` no longer hold a tensor.
  using Dropped = std::function<void(int local, int64_t offset, int64_t bytes)>;

  // `heaps` by local device; device i is world rank first_rank + i.
  TensorStore(int first_rank, std::vector<Heap*> heaps, Dropped dropped = nullptr);

  // Errors: INVALID_ARGUMENT, OUT_OF_RANGE for a place outside the heap.
  absl::Status Place(const v1::Tensor& tensor);
  void Drop(uint64_t tensor_id);
  void DropAll();

  // The number of generations that have ended on this node, which differs from the world's
  // generation number. The leases of all transfers end with their local generation.
  uint64_t local_generation() const { return local_generation_.load(); }
  // While the lock is held, no generation ends. Meant for a few copies after a check of
  // local_generation().
  std::shared_lock<std::shared_mutex> HoldGeneration() const {
    return std::shared_lock(generation_mutex_);
  }
  // Ends the generation because of `why`, an error. Waits for the locks of HoldGeneration, so that
  // their writes are in place, or in flight in the old generation.
  void EndTransfers(const absl::Status& why);
  // Returns why `local_generation` ended, if it has and is one of the last kRememberedEnds.
  absl::Status ended(uint64_t local_generation) const;
  // `handler` runs at each end of a generation, on the loop, with the reason. Set before the first.
  void OnGenerationEnd(std::function<void(const absl::Status&)> handler) {
    on_generation_end_ = std::move(handler);
  }

  // Returns the non-empty shards on this node; several may be copies of the same block. Errors:
  // NOT_FOUND.
  absl::StatusOr<std::vector<LocalShard>> Shards(uint64_t tensor_id) const;

  // Returns the memory of the block, in the coordinates of the shard of its world rank. Errors:
  // NOT_FOUND, OUT_OF_RANGE.
  absl::StatusOr<Rows> Resolve(int from_node, const BulkBlock& block, bool write) override;

 private:
  struct Entry;
  // Returns null if the tensor has no place on this node.
  std::shared_ptr<const Entry> Find(uint64_t tensor_id) const;
  // Returns the local device of a world rank; -1 if it is on another node.
  int DeviceOf(int rank) const;
  void ReportDropped(const Entry& entry) const;

  const int first_rank_;
  const std::vector<Heap*> heaps_;
  const Dropped dropped_;
  std::function<void(const absl::Status&)> on_generation_end_;
  mutable std::shared_mutex generation_mutex_;
  std::atomic<uint64_t> local_generation_{0};
  static constexpr size_t kRememberedEnds = 64;
  mutable std::mutex mutex_;                // guards what follows
  std::map<uint64_t, absl::Status> ended_;  // by local generation
  std::map<uint64_t, std::shared_ptr<const Entry>> tensors_;
};

}  // namespace agmm
