// A plan as one of its ranks sees it: the memory of the schedule's places, and the names of steps
// in errors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/device/executor.h"

namespace agmm {

// A Place in a heap. Its buffer's offset comes with each epoch, because operands and workspace move
// between epochs.
struct HeapPlace {
  Rank rank = 0;
  Buffer buffer = kWorkspace;
  Heap* heap = nullptr;                       // null: on another node
  int64_t offset_bytes = 0, pitch_bytes = 0;  // within the buffer
  DType dtype = DType::kF32;

  int64_t BufferOffset(const Operands& operands) const {
    return buffer == kWorkspace ? operands.workspace_offset : operands.offsets[buffer];
  }
  // The first byte of a row, within the heap.
  int64_t RowOffset(const Operands& operands, int64_t row) const {
    return BufferOffset(operands) + offset_bytes + row * pitch_bytes;
  }
};

struct RankPlan {
  Problem problem;
  std::shared_ptr<const Schedule> schedule;
  Peers peers;

  const std::vector<Step>& steps() const { return schedule->ranks[peers.self]; }
  bool IsLocal(Rank rank) const { return peers.nodes[rank] == peers.nodes[peers.self]; }
  int WorldRank(Rank rank) const { return problem.mesh.ranks[rank]; }

  // Checks that schedule, mesh and peers have the same ranks, and that every rank of this node has
  // a heap and an executor. Errors: INVALID_ARGUMENT.
  absl::Status CheckPeers() const;
  // Checks that `operands` and the workspace lie in the heaps of this node's ranks. Errors:
  // INVALID_ARGUMENT.
  absl::Status CheckOperands(const Operands& operands) const;

  // Requires that the place's step has been verified.
  HeapPlace Locate(const Place& place) const;
  // Bytes of a buffer on every rank.
  int64_t BufferBytes(Buffer buffer) const;

  // "rank 3 lane 1 step 5", with world ranks, and with mesh ranks, as in a schedule.
  std::string StepName(int step) const;
  std::string MeshStepName(int step) const;
  // "send rows 2048:4096 of A to rank 4".
  std::string What(int step) const;
  // "rank 3 lane 1 step 5 waited 5.0 s for slot 3:2 (rank 4: send rows 2048:4096 of A to
  // rank 3)".
  std::string Waiting(int step, int64_t since_ns, const Slot& slot) const;
  // "rank 3 lane 1 step 5 was still at work after 5.0 s (send rows 2048:4096 of A to rank 4)".
  std::string AtWork(int step, int64_t since_ns) const;
  // "rank 3 lane 1 step 5 was ready for up to 5.0 s, and no worker had begun it (...)".
  std::string Ready(int step, int64_t since_ns) const;
  // "rank 3 had 2 messages to other nodes in flight after 5.0 s".
  std::string InFlight(int messages, int64_t since_ns) const;
  // Describes the step that holds up the epoch, with one of the four above: "rank 3 lane 1 step 5
  // waited 5.0 s for slot 3:2 (...), epoch 17".
  std::string Stall(const RankState& state) const;
  // "rank 3 lane 1 step 5 could not be sent (send rows 2048:4096 of A to rank 4), epoch 17".
  std::string NotSent(int step, uint64_t epoch) const;

 private:
  absl::Status CheckLies(absl::string_view name, int64_t offset, int64_t bytes) const;
  // Describes the step that raises the slot: "rank 4: send rows 2048:4096 of A to rank 3".
  std::string Producer(const Slot& slot) const;
};

}  // namespace agmm
