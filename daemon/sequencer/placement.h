// Symmetric placement: one free list a rank, kept by the sequencer. No collective call, no
// lockstep.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace agmm {

// kHeld: of tensors that clients have not let go of.
enum class MemoryClass { kTensor, kWorkspace, kHeld };

// Thread-compatible.
class Placement {
 public:
  // Ranks with the bytes of their heaps; forgets everything placed before.
  void Reset(const std::vector<int64_t>& heap_bytes);
  // Tried, as often as it returns true, before Allocate gives up on what an empty heap could hold:
  // frees something that nobody needs now, so that `bytes` on `ranks` find room.
  using Reclaim = std::function<bool(const std::vector<int>& ranks, int64_t bytes)>;
  void set_reclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }

  // The lowest offset at which `bytes` (> 0) are free on all of `ranks`; a multiple of 4096.
  // Errors: RESOURCE_EXHAUSTED with HEAP_FULL: asked, free, largest free piece common to the ranks.
  absl::StatusOr<int64_t> Allocate(const std::vector<int>& ranks, int64_t bytes,
                                   MemoryClass memory_class);
  // OK if Allocate would find room once `freed`, which are workspaces, were given back; else its
  // error, as it would be then. Changes nothing.
  struct Piece {
    std::vector<int> ranks;
    int64_t offset_bytes = 0, bytes = 0;
  };
  absl::Status CheckRoom(const std::vector<int>& ranks, int64_t bytes,
                         const std::vector<Piece>& freed) const;
  // Takes the place that is named, if it is free on all of `ranks`, which are different.
  bool AllocateAt(const std::vector<int>& ranks, int64_t offset, int64_t bytes,
                  MemoryClass memory_class);
  // Counts what is allocated as another class from now on.
  void Reclass(const std::vector<int>& ranks, int64_t bytes, MemoryClass from, MemoryClass to);
  // Names the largest of what lies on a rank, for errors: "W 1.00 GiB, X 512 MiB"; may be empty.
  void set_describe_tensors(std::function<std::string(int rank)> describe) {
    describe_tensors_ = std::move(describe);
  }
  // Gives back what Allocate returned for the same ranks and bytes.
  void Free(const std::vector<int>& ranks, int64_t offset, int64_t bytes, MemoryClass memory_class);

  int64_t heap_bytes(int rank) const;
  int64_t free_bytes(int rank) const;
  int64_t largest_free_bytes(int rank) const;
  int64_t used_bytes(int rank, MemoryClass memory_class) const;
  int rank_count() const { return static_cast<int>(heaps_.size()); }

 private:
  struct HeapState {
    int64_t size = 0;
    std::map<int64_t, int64_t> free;  // offset -> bytes, coalesced
    int64_t used[3] = {0, 0, 0};
  };

  void Take(const std::vector<int>& ranks, int64_t offset, int64_t bytes, MemoryClass memory_class);

  // "tensors 1.50 GiB (W 1.00 GiB, X 512 MiB), workspaces 96 MiB".
  std::string Holders(int rank) const;

  std::vector<HeapState> heaps_;
  Reclaim reclaim_;
  std::function<std::string(int)> describe_tensors_;
};

}  // namespace agmm
