#include "kernels/schedule/access.h"

#include "absl/strings/str_format.h"
#include "kernels/schedule/order.h"

namespace agmm {

absl::InlinedVector<Access, 4> AccessesOf(const Step& step, Rank rank, int index) {
  absl::InlinedVector<Access, 4> out;
  const bool transfers = std::holds_alternative<Transfer>(step.op);
  int puts = 0;
  ForEachPlace(step.op, [&](const Block& block, const Place& place, Use use) {
    const int to = use == Use::kPut ? puts++ : -1;
    out.push_back({rank, index, place.rank != rank ? to : -1, use != Use::kRead,
                   transfers && use == Use::kRead, block, place});
  });
  return out;
}

Footprint FootprintOf(const Problem& problem, const Access& access) {
  // A write may overwrite padding; a read ignores it.
  return access.write ? PaddedFootprintOf(problem, access.block, access.place)
                      : FootprintOf(access.block, access.place);
}

Traffic& Traffic::operator+=(const Traffic& other) {
  own_island += other.own_island;
  other_islands += other.other_islands;
  other_nodes += other.other_nodes;
  return *this;
}

std::vector<Traffic> TrafficOf(const Topology& topology, const Schedule& schedule) {
  std::vector<Traffic> by_rank(schedule.ranks.size());
  for (Rank rank = 0; rank < static_cast<Rank>(schedule.ranks.size()); ++rank) {
    for (const Step& step : schedule.ranks[rank]) {
      ForEachPlace(step.op, [&, self = rank](const Block& block, const Place& place, Use use) {
        const Rank other = place.rank;
        if (other == self) return;
        Traffic& traffic = by_rank[use == Use::kRead ? other : self];
        (topology.CanLoad(self, other)    ? traffic.own_island
         : topology.SameNode(self, other) ? traffic.other_islands
                                          : traffic.other_nodes) +=
            block.rows.size() * RowBytes(block, place);
      });
    }
  }
  return by_rank;
}

std::string BlockName(const Problem& problem, const Block& block) {
  return absl::StrFormat("%s[%d:%d, %d:%d]", problem.tensors[block.operand].name, block.rows.begin,
                         block.rows.end, block.cols.begin, block.cols.end);
}

std::string BufferName(const Problem& problem, Rank rank, Buffer buffer) {
  return absl::StrFormat("rank %d's %s", rank,
                         buffer == kWorkspace ? "workspace" : problem.tensors[buffer].name);
}

std::string PlacedName(const Problem& problem, const Block& block, const Place& place) {
  return absl::StrFormat("%s at byte %d of %s", BlockName(problem, block), place.offset_bytes,
                         BufferName(problem, place.rank, place.buffer));
}

}  // namespace agmm
