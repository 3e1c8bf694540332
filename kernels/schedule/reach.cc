#include "kernels/schedule/reach.h"

#include <algorithm>

namespace agmm {

Reach::Reach(const Order& order)
    : order_(order),
      ranks_(order.nodes() - static_cast<int>(order.sequence().size())),
      rows_(order.nodes()) {
  std::vector<int> node(order.nodes());  // by row
  for (int index = 0; index < order.nodes(); ++index) node[RowOf(index)] = index;
  edges_.reserve(order.AllGates().size());
  for (int number = 0; number < order.nodes(); ++number) {
    const int index = node[number];
    Row& row = rows_[number];
    row.places[0] = number;
    row.chain = order.ChainOf(index);
    row.start = order.StartOf({index, 0});
    row.home = order.ChainOf(order.NodeOf({order.RankOf(index), kEnvironment}).index);
    row.first_edge = static_cast<int>(edges_.size());
    // The first gate of a step is the step before it, or of a relay lane the end of the lane.
    bool crosses = true;
    for (const Order::Gate& gate : order.GatesOf(index)) {
      edges_.push_back(
          {RowOf(gate.index), gate.lag > 0, gate.arrival >= 0, crosses && gate.lag > 0});
      crosses = order.IsEnvironment(index);
    }
    row.last_edge = static_cast<int>(edges_.size());
    if (edges_[row.first_edge].crosses) crossings_.push_back(number);
  }
  AddOrder(1, /*first_in_first_out=*/true, /*ascending=*/false);
  AddOrder(2, /*first_in_first_out=*/false, /*ascending=*/false);
  AddOrder(3, /*first_in_first_out=*/false, /*ascending=*/true);
  FindLatest();
  FindLatestHome();
}

void Reach::AddOrder(int number, bool first_in_first_out, bool ascending) {
  const int rows = order_.nodes();
  std::vector<int> gated(rows, 0), ready;  // by row: the rows that it gates and that have no place
  for (const Edge& edge : edges_) gated[edge.row] += edge.next_epoch ? 0 : 1;
  for (int i = 0; i < rows; ++i)
    if (const int row = ascending ? i : rows - 1 - i; gated[row] == 0) ready.push_back(row);
  int place = rows;
  for (size_t i = 0; i < ready.size();) {
    int row = 0;
    if (first_in_first_out) {
      row = ready[i++];
    } else {
      row = ready.back();
      ready.pop_back();
    }
    rows_[row].places[number] = --place;
    const absl::Span<const Edge> edges = EdgesOf(row);
    const int count = static_cast<int>(edges.size());
    for (int e = 0; e < count; ++e) {
      const Edge& edge = edges[ascending ? e : count - 1 - e];
      if (!edge.next_epoch && --gated[edge.row] == 0) ready.push_back(edge.row);
    }
  }
}

void Reach::FindLatest() {
  for (Row& row : rows_) {
    row.latest.fill(-1);
    for (int e = row.first_edge; e < row.last_edge; ++e) {
      const Edge& edge = edges_[e];
      if (edge.crosses) continue;
      const Row& gate = rows_[edge.row];
      const Places& from = edge.next_epoch ? gate.places : gate.latest;
      for (int i = 0; i < kOrders; ++i) row.latest[i] = std::max(row.latest[i], from[i]);
    }
  }
}

void Reach::FindLatestHome() {
  for (Row& row : rows_) {
    for (int e = row.first_edge; e < row.last_edge; ++e) {
      const Edge& edge = edges_[e];
      const Row& gate = rows_[edge.row];
      if (edge.next_epoch || gate.home != row.home) continue;
      const int latest =
          gate.chain == row.home ? gate.start + (edge.arrival ? 0 : 1) : gate.latest_home;
      row.latest_home = std::max(row.latest_home, latest);
    }
  }
}

void Reach::Compute(int block) {
  block_ = block;
  const int rows = order_.nodes();
  const auto add = [](const Bits& from, Bits& to) {
    for (int i = 0; i < kBits / 64; ++i) to[i] |= from[i];
  };
  before_.assign(rows, {});
  after_start_.assign(rows, {});
  after_end_.assign(rows, {});
  const int first = block * kBits;
  const int last = std::min(first + kBits, static_cast<int>(crossings_.size()));
  for (int crossing = first; crossing < last; ++crossing) {
    Bits bits = {};
    bits[(crossing - first) / 64] = uint64_t{1} << crossing % 64;
    before_[crossings_[crossing]] = bits;
    for (const Edge& edge : EdgesOf(crossings_[crossing]))
      if (edge.crosses) add(bits, after_end_[edge.row]);
  }
  for (int row = 0; row < rows; ++row)
    for (const Edge& edge : EdgesOf(row))
      if (!edge.next_epoch) add(before_[edge.row], before_[row]);
  for (int row = rows - 1; row >= 0; --row) {
    add(after_end_[row], after_start_[row]);
    for (const Edge& edge : EdgesOf(row))
      if (!edge.next_epoch)
        add(after_start_[row], (edge.arrival ? after_start_ : after_end_)[edge.row]);
  }
}

bool Reach::Enter(const Point& x, int x_row, const Visit& visit) {
  if (visit.epoch < x.node.epoch) return false;
  const Row& from = rows_[x_row];
  Row& row = rows_[visit.row];
  const auto is_past = [&](const Places& reached) {
    return reached[0] < from.places[0] || reached[1] < from.places[1] ||
           reached[2] < from.places[2] || reached[3] < from.places[3];
  };
  const bool later = visit.epoch > x.node.epoch;
  if (!later && is_past(row.places)) return false;
  if (row.chain == from.chain) return later || row.start > from.start;
  if (!later && row.home == from.chain && row.latest_home >= from.start + (x.end ? 1 : 0))
    return true;
  if (later && is_past(row.latest)) return false;
  int& seen = row.seen[visit.epoch];
  if (seen == walks_) return false;
  seen = walks_;
  walk_.push_back(visit);
  return false;
}

bool Reach::Before(const Point& x, absl::Span<const Order::Node> ys) {
  ++walks_;
  walk_.clear();
  const int x_row = RowOf(x.node.index);
  for (const Order::Node& y : ys)
    if (Enter(x, x_row, {RowOf(y.index), y.epoch})) return true;
  for (size_t i = 0; i < walk_.size(); ++i) {
    const Visit at = walk_[i];
    for (const Edge& edge : EdgesOf(at.row)) {
      if (edge.crosses) continue;
      const Visit before = {edge.row, at.epoch - (edge.next_epoch ? 1 : 0)};
      if (before.row == x_row && before.epoch == x.node.epoch) {
        if (!x.end || !edge.arrival) return true;
      } else if (Enter(x, x_row, before)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace agmm
