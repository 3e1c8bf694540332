// A small schedule written by hand: two ranks on one node, A[8, K] split along M. Each rank pushes
// its shard of A to the other one, and multiplies all of A.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/schedule/index.h"
#include "kernels/schedule/schedule.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/problems.h"

namespace agmm::test {

// The place of `block` in the shard of `rank`.
inline Place InShard(const Problem& problem, const Block& block, Rank rank) {
  const Tensor& tensor = problem.tensors[block.operand];
  const Block shard = ShardBlock(problem, block.operand, rank);
  const int64_t pitch = ShardPitchBytes(problem.mesh, tensor);
  return {rank, block.operand,
          (block.rows.begin - shard.rows.begin) * pitch +
              (block.cols.begin - shard.cols.begin) * SizeOf(tensor.dtype),
          pitch, tensor.dtype};
}

struct Hand {
  explicit Hand(int64_t k = 2, int nodes = 1)
      : problem(MakeProblem(2, {8, 4, k})), topology(MakeTopology(2, nodes)) {
    schedule.algorithm = "hand";
    schedule.workspace_bytes = 1 << 14;
    schedule.ranks.resize(2);
  }

  Block A(Rank owner) const { return ShardBlock(problem, kA, owner); }
  Block B(Rank rank) const { return ShardBlock(problem, kB, rank); }
  // The part of C at `rank` that comes from A's shard of `owner`.
  Block C(Rank rank, Rank owner) const {
    return {kC, A(owner).rows, ShardBlock(problem, kC, rank).cols};
  }
  Place Own(const Block& block, Rank rank) const { return InShard(problem, block, rank); }
  static Place Work(Rank rank, int64_t offset = 0, int64_t pitch = 256) {
    return {rank, kWorkspace, offset, pitch, DType::kF32};
  }

  // The product of A's shard of `owner`, at `place`, over the slice `k` of K (default: all), at
  // `rank`.
  Multiply Product(Rank rank, Rank owner, Place place, Range k = {}) const {
    Multiply m;
    m.c = C(rank, owner);
    m.a = A(owner);
    m.b = B(rank);
    if (!k.empty()) {
      place.offset_bytes += k.begin * SizeOf(DType::kF32);
      m.a.cols = m.b.rows = k;
    }
    m.a_place = place;
    m.b_place = Own(m.b, rank);
    m.out = Own(m.c, rank);
    return m;
  }
  Multiply OwnProduct(Rank rank) const { return Product(rank, rank, Own(A(rank), rank)); }

  Step& Add(Rank rank, StepOp op, int lane, std::vector<Wait> waits = {},
            std::vector<Slot> signals = {}) {
    schedule.ranks[rank].push_back({std::move(op), lane, std::move(waits), std::move(signals)});
    return schedule.ranks[rank].back();
  }

  // Slot 0 of a rank: its arrival. Slot 1: the credit of the other's workspace.
  // Steps 0, 1: the own product and the other's, in lane 0. Step 2: the push, in lane 1.
  static Hand Push(int64_t k = 2) {
    Hand h(k, 2);
    for (Rank r : {0, 1}) {
      const Rank o = 1 - r;
      h.Add(r, h.OwnProduct(r), 0);
      h.Add(r, h.Product(r, o, Work(r)), 0, {{{r, 0}}}, {{o, 1}});
      h.Add(r, Transfer{h.A(r), h.Own(h.A(r), r), {Work(o)}}, 1, {{{r, 1}, 1}}, {{o, 0}});
    }
    return h;
  }

  // Both multiply the other's shard where it lies. Slot 0: the other's epoch has begun. Slot 1: its
  // reading is over. Steps, in lane 0: entry join, own product, the other's, exit join.
  static Hand Load(int nodes = 1) {
    Hand h(2, nodes);
    for (Rank r : {0, 1}) {
      const Rank o = 1 - r;
      h.Add(r, Join(), 0, {}, {{o, 0}});
      h.Add(r, h.OwnProduct(r), 0);
      h.Add(r, h.Product(r, o, h.Own(h.A(o), o)), 0, {{{r, 0}}}, {{o, 1}});
      h.Add(r, Join(), 0, {{{r, 1}}});
    }
    return h;
  }

  template <typename T>
  T& Op(Rank rank, int step) {
    return std::get<T>(At(rank, step).op);
  }
  Step& At(Rank rank, int step) { return schedule.ranks[rank][step]; }
  void Drop(Rank rank, int step) {
    schedule.ranks[rank].erase(schedule.ranks[rank].begin() + step);
  }
  absl::Status Check() const { return Verify(problem, topology, schedule); }

  Problem problem;
  Topology topology;
  Schedule schedule;
};

}  // namespace agmm::test
