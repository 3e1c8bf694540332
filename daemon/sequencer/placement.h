// Symmetric placement without collective calls: the sequencer has one free list for each rank.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace agmm {

enum class MemoryClass { kTensor, kWorkspace };
// Allocations are whole pages.
inline constexpr int64_t kPlacementAlign = 4096;

// Callers pass at least one rank; ranks are distinct ranks of the world. Thread-compatible.
class Placement {
 public:
  // Sets the size of each rank's heap, and forgets all allocations.
  void Reset(const std::vector<int64_t>& heap_bytes);
  // Frees idle memory to make room for `bytes` on `ranks`. Before Allocate fails with a size that
  // an empty heap could hold, it calls this again until it returns false.
  using Reclaim = std::function<bool(const std::vector<int>& ranks, int64_t bytes)>;
  void set_reclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }

  // Returns the lowest offset at which `bytes` (> 0) are free on all of `ranks`; a multiple of
  // 4096. Errors: RESOURCE_EXHAUSTED with HEAP_FULL, with the requested and free bytes and the
  // largest free piece common to the ranks.
  absl::StatusOr<int64_t> Allocate(const std::vector<int>& ranks, int64_t bytes,
                                   MemoryClass memory_class);
  // Returns OK if Allocate would succeed after freeing the workspaces `freed`; else its error.
  // Changes nothing.
  struct Piece {
    std::vector<int> ranks;
    int64_t offset_bytes = 0, bytes = 0;
  };
  absl::Status CheckRoom(const std::vector<int>& ranks, int64_t bytes,
                         const std::vector<Piece>& freed) const;
  // Allocates the bytes at `offset` if they are free on all of `ranks`.
  bool AllocateAt(const std::vector<int>& ranks, int64_t offset, int64_t bytes,
                  MemoryClass memory_class);
  // Describes the tensors on a rank, for errors: " (W 1.00 GiB, X 512 MiB)"; may be empty.
  void set_describe_tensors(std::function<std::string(int rank)> describe) {
    describe_tensors_ = std::move(describe);
  }
  // Frees an allocation; ranks, offset and bytes must be those of Allocate.
  void Free(const std::vector<int>& ranks, int64_t offset, int64_t bytes, MemoryClass memory_class);

  int64_t heap_bytes(int rank) const;
  int64_t free_bytes(int rank) const;
  int64_t largest_free_bytes(int rank) const;
  int64_t used_bytes(int rank, MemoryClass memory_class) const;
  int rank_count() const { return static_cast<int>(heaps_.size()); }

 private:
  struct RankHeap {
    int64_t size = 0;
    std::map<int64_t, int64_t> free;  // offset -> bytes, coalesced
    int64_t used[2] = {0, 0};         // by class
  };

  void Take(const std::vector<int>& ranks, int64_t offset, int64_t bytes, MemoryClass memory_class);

  // "tensors 1.50 GiB (W 1.00 GiB, X 512 MiB), workspaces 96 MiB".
  std::string DescribeUsage(int rank) const;

  std::vector<RankHeap> heaps_;
  Reclaim reclaim_;
  std::function<std::string(int)> describe_tensors_;
};

}  // namespace agmm
