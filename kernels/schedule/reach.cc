#include "kernels/schedule/reach.h"

#include <algorithm>

namespace agmm {

Reach::Reach(const Order& order)
    : order_(order),
      ranks_(order.nodes() - static_cast<int>(order.sequence().size())),
      node_(order.nodes()),
      places_(order.nodes()),
      seen_(size_t{2} * order.nodes(), 0) {
  for (int index = 0; index < order.nodes(); ++index) node_[RowOf(index)] = index;
  edge_begin_.reserve(order.nodes() + 1);
  edges_.reserve(order.AllGates().size());
  for (int row = 0; row < order.nodes(); ++row) {
    const int index = node_[row];
    edge_begin_.push_back(static_cast<int>(edges_.size()));
    // The first gate of a step is the step before it, or of a relay lane the end of the lane.
    bool crosses = true;
    for (const Order::Gate& gate : order.GatesOf(index)) {
      edges_.push_back(
          {RowOf(gate.index), gate.lag > 0, gate.arrival >= 0, crosses && gate.lag > 0});
      crosses = order.IsEnvironment(index);
    }
    if (edges_[edge_begin_[row]].crosses) crossings_.push_back(row);
  }
  edge_begin_.push_back(static_cast<int>(edges_.size()));
  for (int row = 0; row < order.nodes(); ++row) places_[row][0] = row;
  AddOrder(1, /*first_in_first_out=*/true, /*ascending=*/false);
  AddOrder(2, /*first_in_first_out=*/false, /*ascending=*/false);
  AddOrder(3, /*first_in_first_out=*/false, /*ascending=*/true);
  FindLatest();
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
    places_[row][number] = --place;
    const absl::Span<const Edge> edges = EdgesOf(row);
    const int count = static_cast<int>(edges.size());
    for (int e = 0; e < count; ++e) {
      const Edge& edge = edges[ascending ? e : count - 1 - e];
      if (!edge.next_epoch && --gated[edge.row] == 0) ready.push_back(edge.row);
    }
  }
}

void Reach::FindLatest() {
  Places none;
  none.fill(-1);
  latest_.assign(order_.nodes(), none);
  for (int row = 0; row < order_.nodes(); ++row) {
    for (const Edge& edge : EdgesOf(row)) {
      if (edge.crosses) continue;
      const Places& from = edge.next_epoch ? places_[edge.row] : latest_[edge.row];
      for (int i = 0; i < kOrders; ++i) latest_[row][i] = std::max(latest_[row][i], from[i]);
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
  const auto is_past = [&](const Places& reached) {
    const Places& from = places_[x_row];
    return reached[0] < from[0] || reached[1] < from[1] || reached[2] < from[2] ||
           reached[3] < from[3];
  };
  const bool later = visit.epoch > x.node.epoch;
  if (!later && is_past(places_[visit.row])) return false;
  const int index = node_[visit.row];
  if (order_.ChainOf(index) == order_.ChainOf(x.node.index))
    return order_.StartOf({index, visit.epoch}) > order_.StartOf(x.node);
  if (later && is_past(latest_[visit.row])) return false;
  int& seen = seen_[static_cast<size_t>(visit.epoch) * order_.nodes() + visit.row];
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
