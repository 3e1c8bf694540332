// A schedule while it is built: the movements with their places, the steps of each rank so far, and
// the slots and the workspace that they use.
#pragma once

#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/arrivals.h"
#include "kernels/schedule/build_options.h"
#include "kernels/schedule/cells.h"
#include "kernels/schedule/send_lanes.h"

namespace agmm {

// A movement with its arrivals, by hop.
struct PlacedMovement {
  explicit PlacedMovement(const Movement& its_movement) : movement(its_movement) {}
  bool is_read() const { return movement.consumer() == Consumer::kMultiplies; }
  bool is_made() const { return movement.producer() == Producer::kMultiplies; }
  bool is_summed() const { return movement.consumer() == Consumer::kSum; }
  // The blocks that travel are those of a sum.
  bool is_sum() const { return movement.producer() == Producer::kSum; }
  // From the shards of one operand to those of another.
  bool is_moved() const {
    return movement.producer() == Producer::kShard && movement.consumer() == Consumer::kShard;
  }

  const Movement& movement;
  std::vector<Place> whole;    // by rank, the place of a contiguous input; else empty
  std::vector<Place> bundles;  // by bundle, its place at the sender
  std::vector<PlacedChunk> arrivals;
  std::vector<std::vector<Wait>> gates;  // by hop: the credits that its sender waits for
};

// A place in the workspace for a block that a rank computes for others, or of which it has terms.
struct StagingPlace {
  Place place;
  int first = 0;  // index in `computes` of the first step that writes there
};

struct RankSteps {
  explicit RankSteps(const Mesh& mesh) : send_lanes(mesh) {}
  Step entry, exit;            // joins at both ends of the epoch
  std::vector<Step> computes;  // copies and multiplies, on the compute lane
  std::vector<Step> others;    // on the other lanes
  std::map<int, Place> sums;   // by number
  // By chunk of the result, or -1 for all of it: the slot that is raised when the rank has computed
  // it, and its place if that is not in the shard.
  absl::flat_hash_map<int, Slot> made;
  absl::flat_hash_map<int, StagingPlace> staging;
  absl::flat_hash_map<Rank, Slot> begun;  // by owner of a shard that it reads or writes
  Carriers carriers;                      // indices of `computes`
  SendLanes send_lanes;
  CarriedLanes carried_lanes;  // on the lanes after send_lanes
};

struct BuildState {
  BuildState(const Problem& its_problem, const Topology& its_topology, const Work& its_work,
             const std::vector<Movement>& movements, const BuildOptions& its_options)
      : problem(its_problem),
        topology(its_topology),
        work(its_work),
        options(its_options),
        resources(problem.mesh.size()),
        placed(movements.begin(), movements.end()),
        ranks(problem.mesh.size(), RankSteps(problem.mesh)) {}

  // The block of an input that a rank reads, or of a result that it computes.
  Block NeededAt(const PlacedMovement& one, Rank rank) const {
    return NeededBlock(problem, one.movement.operand(), work.parts[rank]);
  }
  // Returns true if the result travels and one multiply computes all of a rank's part.
  bool MakesWhole(const PlacedMovement& result) const {
    return options.arrivals == Arrivals::kContiguous && result.movement.travels() &&
           result.is_made();
  }
  Place Allocate(Rank rank, const Block& block) {
    return resources.Allocate(rank, block.rows.size(), block.cols.size(),
                              problem.tensors[block.operand].dtype);
  }
  // Returns the place of a block in the shard of its producer: an input's own, or that of the
  // source of a collective.
  Place SourcePlace(const Block& block, Rank rank) const {
    return ResidentPlace(problem, {SourceOf(problem, block.operand), block.rows, block.cols}, rank);
  }
  // The slot at `rank` that is raised when the epoch of `owner` has begun.
  Slot Begun(Rank rank, Rank owner) {
    const auto [at, added] = ranks[rank].begun.try_emplace(owner);
    if (added) {
      at->second = resources.NewSlot(rank);
      ranks[owner].entry.signals.push_back(at->second);
    }
    return at->second;
  }
  bool BetweenNodes(const Movement::ChunkHop& hop) const {
    return !topology.SameNode(hop.from, hop.to);
  }

  const Problem& problem;
  const Topology& topology;
  const Work& work;
  const BuildOptions& options;
  Resources resources;
  std::vector<PlacedMovement> placed;  // by movement
  std::vector<RankSteps> ranks;
};

}  // namespace agmm
