#include "kernels/schedule/access.h"

#include <algorithm>
#include <utility>

#include "kernels/base/units.h"

namespace agmm {
namespace {

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

// Returns true if a multiple t * pitch lies strictly between `low` and `high`, for a t in [first,
// last].
bool MultipleBetween(int64_t low, int64_t high, int64_t pitch, int64_t first, int64_t last) {
  return std::max(first, FloorDiv(low, pitch) + 1) <= std::min(last, FloorDiv(high - 1, pitch));
}

// Merges rows that have no gap between them into one row.
Footprint Merged(Footprint f) {
  if (f.rows == 1 || f.pitch == f.width) f = {f.offset, f.rows * f.width, 1, f.rows * f.width};
  return f;
}

}  // namespace

Footprint FootprintOf(const Block& block, const Place& place) {
  return {place.offset_bytes, place.pitch_bytes, block.rows.size(), RowBytes(block, place)};
}

Footprint PaddedFootprintOf(const Problem& problem, const Block& block, const Place& place) {
  Footprint footprint = FootprintOf(block, place);
  // Rounds up the end, not the width, because a block may begin in the middle of an aligned row.
  if (OwnsPadding(problem, block, place))
    footprint.width =
        RoundUp(footprint.offset + footprint.width, kRowAlignBytes) - footprint.offset;
  return footprint;
}

bool Overlap(const Footprint& first, const Footprint& second) {
  Footprint a = Merged(first), b = Merged(second);
  if (a.end() <= b.offset || b.end() <= a.offset) return false;
  if (a.pitch == b.pitch) {
    // Row i of a and row j of b overlap if delta - a.width < (i - j) * pitch < delta + b.width.
    const int64_t delta = b.offset - a.offset;
    return MultipleBetween(delta - a.width, delta + b.width, a.pitch, 1 - b.rows, a.rows - 1);
  }
  if (a.rows > b.rows) std::swap(a, b);
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t delta = a.offset + i * a.pitch - b.offset;
    if (MultipleBetween(delta - b.width, delta + a.width, b.pitch, 0, b.rows - 1)) return true;
  }
  return false;
}

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

}  // namespace agmm
