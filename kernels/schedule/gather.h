// Gathers along M as routes: the chunks that each rank passes on, to which rank, in which order. An
// algorithm only writes routes; BuildGather derives places, slots and credits from them.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// One rank's part of A that travels and multiplies as a unit.
struct Chunk {
  Rank owner = 0;
  Range rows;  // of A
};

// Passes chunks[chunk] from a rank that owns it, or has received it, to another rank.
struct Hop {
  int chunk = 0;
  Rank from = 0, to = 0;
};

struct GatherRoutes {
  std::vector<Chunk> chunks;
  std::vector<std::vector<Hop>> sends;       // by rank, in the order they leave
  std::vector<std::vector<int>> multiplies;  // by rank: indices into chunks, in order
};

// Groups of ranks that gather from each other, each in the order of its shards of A. The ranks of a
// group differ only along the axes that shard A's rows.
std::vector<std::vector<Rank>> GatherGroups(const Problem& problem);

// One such group, with the chunks of each rank's shard.
struct GatherGroup {
  std::vector<Rank> ranks;
  std::vector<std::vector<int>> by_shard;  // as `ranks`: indices into GatherRoutes::chunks
};

// Cuts each shard into `chunks` near-equal pieces, without the empty ones. Returns routes that have
// only chunks, and the groups to which they belong.
GatherRoutes SplitShards(const Problem& problem, int chunks, std::vector<GatherGroup>* groups);

// Whether the rank has columns of C to compute. If not, it needs no A.
bool HasColumns(const Problem& problem, Rank rank);

// Whole rows of A.
Block RowsOfA(const Problem& problem, Range rows);

// Multiplies whole rows of A at `a_place` by the rank's B, into its C.
Multiply RowsTimesB(const Problem& problem, Rank rank, Range rows, const Place& a_place);

// Lane 0 multiplies, the others send (SendLane). Each arrival has a place of its own in the
// workspace; its sender holds one credit for each reader of that place.
Schedule BuildGather(const Problem& problem, const std::string& algorithm,
                     const GatherRoutes& routes);

inline constexpr int kComputeLane = 0;
// The lane of a rank's index-th send. Sends take turns on several lanes, because with one the link
// would idle between two sends; on fewer for a large mesh, because Close and Verify take a pass
// over all steps for each few lanes of all ranks.
int SendLane(const Problem& problem, int index);

// The planners; Plan() in plan.h chooses among them and closes what they return. `chunks` >= 1.
Schedule PlanSerial(const Problem& problem);
Schedule PlanRing(const Problem& problem, int chunks);
Schedule PlanDirect(const Problem& problem, int chunks);
// Each of GatherGroups must lie within a node.
Schedule PlanPeer(const Problem& problem, int chunks);

}  // namespace agmm
