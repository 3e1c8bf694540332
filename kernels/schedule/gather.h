// Gathers along M as routes: which rank passes which chunk to whom, and in which order. An
// algorithm only writes routes; places, slots and credits follow from them here.
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

// Passes chunks[chunk] from one rank, who owns it or was passed it before, to another.
struct Hop {
  int chunk = 0;
  Rank from = 0, to = 0;
};

struct GatherRoutes {
  std::vector<Chunk> chunks;
  std::vector<std::vector<Hop>> sends;       // by rank, in the order they leave
  std::vector<std::vector<int>> multiplies;  // by rank: indices into chunks, in order
};

// The ranks that gather among each other, in the order of their shards of A: they differ only along
// the axes that shard A's rows. One group a position along the other axes.
std::vector<std::vector<Rank>> GatherGroups(const Problem& problem);

// One of them, with the chunks of each rank's shard.
struct GatherGroup {
  std::vector<Rank> ranks;
  std::vector<std::vector<int>> by_shard;  // as `ranks`: indices into GatherRoutes::chunks
};

// Routes with chunks only, and the groups to which they belong: each shard in `chunks` near-equal
// pieces, empty ones left out.
GatherRoutes SplitShards(const Problem& problem, int chunks, std::vector<GatherGroup>* groups);

// True if the rank has columns of C to compute; one that has none needs no A.
bool HasColumns(const Problem& problem, Rank rank);

// Where the rows from `first_row` on of a rank's shard lie. B is whole along its rows.
Place ResidentRows(const Problem& problem, Operand operand, Rank rank, int64_t first_row);

// Rows of A that lie whole at `a_place`, times the rank's B, into its C.
Multiply RowsTimesB(const Problem& problem, Rank rank, Range rows, const Place& a_place);

// Lane 0 multiplies, those from 1 on send (SendLane). Each arrival has a place of its own in the
// workspace; its sender holds one credit for each of its readers.
Schedule BuildGather(const Problem& problem, const std::string& algorithm,
                     const GatherRoutes& routes);

inline constexpr int kComputeLane = 0;
// The lane of a rank's index-th send. They take turns on several, for on one the link would idle
// between the end of a send and the beginning of the next; on fewer where many ranks have many
// sends each (verifying takes memory for each pair of a step and a lane).
int SendLane(const Problem& problem, int index);

// The planners; Plan() in plan.h chooses among them and closes what they return. `chunks` >= 1.
Schedule PlanSerial(const Problem& problem);
Schedule PlanRing(const Problem& problem, int chunks);
Schedule PlanDirect(const Problem& problem, int chunks);
// Each of GatherGroups must lie within a node.
Schedule PlanPeer(const Problem& problem, int chunks);

}  // namespace agmm
