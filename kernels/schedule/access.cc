#include "kernels/schedule/access.h"

#include "absl/strings/str_format.h"
#include "kernels/schedule/order.h"

namespace agmm {

absl::InlinedVector<Access, 4> AccessesOf(const Step& step, Rank rank, int index) {
  absl::InlinedVector<Access, 4> out;
  auto add = [&](const Block& block, const Place& place, bool write, int to = -1,
                 bool is_from = false) {
    out.push_back({rank, index, to, write, is_from, block, place});
  };
  if (const auto* transfer = std::get_if<Transfer>(&step.op)) {
    add(transfer->block, transfer->from, false, -1, true);
    for (int i = 0; i < static_cast<int>(transfer->to.size()); ++i) {
      add(transfer->block, transfer->to[i], true, IsArrival(step, rank, i) ? i : -1);
    }
  } else if (const auto* multiply = std::get_if<Multiply>(&step.op)) {
    add(multiply->a, multiply->a_place, false);
    add(multiply->b, multiply->b_place, false);
    if (multiply->acc) add(multiply->c, *multiply->acc, !multiply->finish);
    if (multiply->finish) add(multiply->c, multiply->out, true);
  } else if (const auto* reduce = std::get_if<Reduce>(&step.op)) {
    add(reduce->c, reduce->from, false);
    add(reduce->c, reduce->into, true);
    if (reduce->finish) add(reduce->c, reduce->out, true);
  }
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
      for (const Access& access : AccessesOf(step, rank, /*index=*/0)) {
        const Rank other = access.place.rank;
        if (other == rank) continue;
        Traffic& traffic = by_rank[access.write ? rank : other];
        (topology.CanLoad(rank, other)    ? traffic.own_island
         : topology.SameNode(rank, other) ? traffic.other_islands
                                          : traffic.other_nodes) +=
            access.block.rows.size() * RowBytes(access.block, access.place);
      }
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
