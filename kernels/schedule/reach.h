// Paths through the graph of an order, over both epochs. A clock of every lane at every node would
// take memory and time for each pair of a node and a lane, which is quadratic in the ranks. Here a
// question is a walk back, and tests in constant time end most walks at once.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/schedule/order.h"

namespace agmm {

// A path enters an epoch through a wait of lag 1, or through a crossing: an environment, or the
// first step of a relay lane. Crossings have most of the paths, and a few of them per rank.
// `order` must outlive this.
class Reach {
 public:
  // The start or the end of a step or an environment.
  struct Point {
    Order::Node node;
    bool end = false;
    bool operator==(const Point&) const = default;
  };

  explicit Reach(const Order& order);

  int blocks() const { return (static_cast<int>(crossings_.size()) + kBits - 1) / kBits; }
  // Finds the paths through the crossings of a block, for the next two functions.
  void Compute(int block);
  // Returns true if `x`, of epoch 0, comes before the start of `y`, of epoch 1, by a path through
  // a crossing of the block.
  bool Crosses(const Point& x, const Order::Node& y) const {
    return Meet((x.end ? after_end_ : after_start_)[RowOf(x.node.index)], before_[RowOf(y.index)]);
  }
  // Returns true if the environment of `rank` ends before the start of `y` in the same epoch, and
  // the block has it.
  bool HasBegun(Rank rank, const Order::Node& y) const {
    const int row = RowOf(y.index);
    return row != rank && rank / kBits == block_ &&
           before_[row][rank % kBits / 64] >> rank % 64 & 1;
  }
  // Returns true if `x` comes before the start of one of `ys` by a path without a crossing between
  // both epochs.
  bool Before(const Point& x, absl::Span<const Order::Node> ys);

 private:
  static constexpr int kBits = 256;
  using Bits = std::array<uint64_t, kBits / 64>;
  // If a node is at or before another one in any of these orders, it is not reached from there.
  static constexpr int kOrders = 4;
  using Places = std::array<int, kOrders>;
  // A gate, with everything that a pass needs in one place.
  struct Edge {
    int row = 0;
    bool next_epoch = false, arrival = false, crosses = false;
  };
  // Everything that a walk reads of a row, in one line of the cache.
  struct alignas(64) Row {
    Places places = {};
    // In each order, the highest place of a gate of lag 1 of the row, or of a row before it.
    Places latest = {};
    int chain = 0, start = 0;  // as in Order, in epoch 0
    int first_edge = 0, last_edge = 0;
    std::array<int, 2> seen = {};  // by epoch: the number of the last walk
    // Lane 0 of the row's rank, and the number of its steps that end before the row, by a path
    // within the rank and the epoch. The step at this position begins before it. -1: no such path.
    int home = 0, latest_home = -1;
  };

  static bool Meet(const Bits& a, const Bits& b) {
    uint64_t common = 0;
    for (int i = 0; i < kBits / 64; ++i) common |= a[i] & b[i];
    return common != 0;
  }
  // Environments have the first rows. Steps follow in the order of the sequence, so most gates are
  // a few rows before their node.
  int RowOf(int index) const {
    const int place = order_.PlaceOf(index);
    return place < 0 ? order_.RankOf(index) : ranks_ + place;
  }
  absl::Span<const Edge> EdgesOf(int row) const {
    const Row& one = rows_[row];
    return absl::MakeConstSpan(edges_).subspan(one.first_edge, one.last_edge - one.first_edge);
  }
  // Numbers all rows from the last one back, such that a row comes before the rows that it gates.
  void AddOrder(int number, bool first_in_first_out, bool ascending);
  void FindLatest();
  void FindLatestHome();

  // A walk back from rows of an epoch.
  struct Visit {
    int row = 0, epoch = 0;
  };
  // Returns true if `x` is on the chain of the row, before it. Otherwise adds the row to the walk,
  // unless `x` cannot be before it.
  bool Enter(const Point& x, int x_row, const Visit& visit);

  const Order& order_;
  const int ranks_;
  std::vector<Row> rows_;
  std::vector<Edge> edges_;     // by row
  std::vector<int> crossings_;  // rows
  int block_ = -1;
  // By row: the crossings of the block before its start, and those after its start and its end in
  // the epoch before.
  std::vector<Bits> before_, after_start_, after_end_;
  std::vector<Visit> walk_;
  int walks_ = 0;
};

}  // namespace agmm
