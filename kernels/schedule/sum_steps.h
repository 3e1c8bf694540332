// The steps that add up a sum: the reductions, and the sends between them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/build_state.h"

namespace agmm {

class SumSteps {
 public:
  // `sum`: the movement whose terms ranks exchange; both must outlive this.
  SumSteps(BuildState& state, const PlacedMovement& sum)
      : state_(state),
        sum_(sum),
        places_(state.problem.mesh.size()),
        latest_(places_.size()),
        first_(places_.size()) {}

  Operand operand() const { return sum_.movement.operand(); }
  // The block that a rank sums; may be empty.
  const Block& SummedAt(Rank rank) const { return sum_.movement.summed_at(rank); }
  // The chunks of the sum that share elements with `block`.
  std::vector<int> ChunksOf(const Block& block) const { return sum_.movement.ChunksOf(block); }
  const Block& ChunkBlock(int chunk) const { return sum_.movement.chunks().list[chunk].block; }
  // Returns the place for the terms that `rank` computes of `block`, which is part of `chunk` (-1:
  // of all that it computes).
  Place PlaceTerms(Rank rank, int chunk, const Block& block);
  // Returns the place at which `rank` finishes a part of the block that it sums: in its shard if
  // the part belongs there, else in the workspace.
  Place PlaceSum(Rank rank, const Block& block);
  // Lets `step` of `rank` wait until the rank has finished `block`.
  void Await(Rank rank, const Block& block, Step& step);
  // Lets the next epoch's sum of `block` at `rank` wait for `read`, a slot of that rank.
  void FinishAfter(Rank rank, const Block& block, const Slot& read);
  // The reductions and the sends of a chunk at a rank, or the send of its own terms (`hop`) if each
  // rank sums everywhere. `step`: as in AddStepAt.
  struct Part {
    int step, chunk;
    Rank rank;
    int hop = -1;
  };
  // All parts of the sum. Each waits only for terms of parts of earlier steps, so if ranks add them
  // in the order of their steps, they never wait for each other in a cycle.
  std::vector<Part> Parts() const;
  void Add(const Part& part) {
    part.hop >= 0 ? SendTerms(part.hop) : AddSum(part.rank, part.chunk);
  }
  // The step in which a rank finishes the last chunk of `block`, and the number of that chunk.
  std::pair<int, int> FinishedAt(Rank rank, const Block& block) const;
  // Adds the waits of FinishAfter.
  void AddCredits();

 private:
  // Terms of a chunk that a rank adds up: its own ones, or those of a hop.
  struct Term {
    Rank from;
    Place place;
    std::optional<Slot> ready, used;  // none for terms in a shard of the same rank
  };
  // Everything that a rank adds up of a chunk: to `base`, which is in its workspace, if there is
  // one, the terms of each batch with one step.
  struct Addends {
    std::optional<Term> base;
    std::vector<std::vector<Term>> batches;
  };
  // The step that finishes a chunk of the sum.
  struct Finish {
    Slot slot;
    int step = -1;            // index in RankSteps::others, once it has been added
    std::vector<Slot> after;  // of FinishAfter
  };

  // Returns a new place for terms of a chunk. If places are bounded, any chunk fits into it.
  Place NewPlace(Rank rank, int chunk, DType dtype);
  // Returns the place for the terms that a rank computes of a chunk. If places are bounded, it may
  // be that of an earlier chunk, which has been added up by then.
  Place TakePlace(Rank rank, int chunk);
  // The terms that `from` has of a chunk, for `rank` to read.
  Term HeldTerm(Rank rank, Rank from, int chunk, const Slot& ready, const Slot& used);
  Addends AddendsOf(Rank rank, int chunk);
  Finish& FinishOf(Rank rank, int chunk);
  // Adds the send of a rank's own terms to another rank that also sums them.
  void SendTerms(int hop);
  // Adds the steps of a rank for a chunk. All of them have one lane, so that multiplies never wait
  // for terms.
  void AddSum(Rank rank, int chunk);

  BuildState& state_;
  const PlacedMovement& sum_;
  std::vector<std::optional<Place>>
      places_;  // by rank: of the block that it sums, if not its shard
  absl::flat_hash_map<std::pair<Rank, int>, Finish> finishes_;
  // The next chunk whose terms a rank computes in the same place, in this epoch or (lag 1) in the
  // next. None: the same chunk in the next epoch.
  struct Next {
    int chunk, lag;
  };
  absl::flat_hash_map<std::pair<Rank, int>, Next> next_;
  // By rank, if places are bounded: the last chunk in each place, the oldest in front; and the
  // first one, by offset.
  std::vector<std::deque<int>> latest_;
  std::vector<std::map<int64_t, int>> first_;
  // By rank, lane and dtype, if places are bounded: where a sum is before it leaves.
  std::map<std::tuple<Rank, int, DType>, Place> scratch_;
};

}  // namespace agmm
