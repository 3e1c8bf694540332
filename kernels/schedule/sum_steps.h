// The steps that add up a sum: the reductions, and the sends between them.
#pragma once

#include <optional>
#include <vector>

#include "kernels/schedule/build_state.h"

namespace agmm {

class SumSteps {
 public:
  // `sum`: the movement whose terms ranks exchange; both must outlive this.
  SumSteps(BuildState& state, const PlacedMovement& sum) : state_(state), sum_(sum) {}

  // Returns the place for the terms that `rank` computes of `block`, which is part of `chunk` (-1:
  // of all that it computes).
  Place PlaceTerms(Rank rank, int chunk, const Block& block);
  // Returns the place at which `rank` finishes a chunk of its sum: in its shard, or in the
  // workspace if the chunk belongs elsewhere.
  Place PlaceSum(Rank rank, const Block& chunk);
  // Adds the reductions and sends in the order in which chunks leave their ranks: each waits for
  // terms that left earlier, so ranks never wait for each other in a circle.
  void Add();
  // The chunks of the sum that share elements with `block`.
  std::vector<int> ChunksOf(const Block& block) const { return sum_.movement.ChunksOf(block); }

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

  // The terms that `from` has of a chunk, for `rank` to read.
  Term HeldTerm(Rank rank, Rank from, int chunk, const Slot& ready, const Slot& used);
  Addends AddendsOf(Rank rank, int chunk);
  // Adds the steps of a rank for a chunk. All of them have one lane, so that multiplies never wait
  // for terms.
  void AddSum(Rank rank, int chunk);

  BuildState& state_;
  const PlacedMovement& sum_;
};

}  // namespace agmm
