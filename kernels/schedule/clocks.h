// Vector clocks of an order: the positions that some of the chains have reached before each node.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/schedule/order.h"

namespace agmm {

// The clocks of kChains chains at a time, because all clocks would take memory for each pair of a
// node and a chain. `order` must outlive this.
class Clocks {
 public:
  static constexpr int kChains = 32;

  explicit Clocks(const Order& order);
  // Computes the clocks of the chains from block * kChains on.
  void Compute(int block);
  static int BlockOf(int chain) { return chain / kChains; }
  int blocks() const { return (order_.chains() + kChains - 1) / kChains; }

  // The number of positions of the block's chains that come before the start of `node`.
  const int32_t* Before(const Order::Node& node) const {
    const int row = node.epoch * order_.nodes() + RowOf(node.index);
    return &clocks_[static_cast<size_t>(row) * kChains];
  }
  // Like Before, for one chain of the block.
  int32_t Before(const Order::Node& node, int chain) const { return Before(node)[chain % kChains]; }

 private:
  // A gate, with everything that a pass needs in one place.
  struct Edge {
    int row = 0, lag = 0;       // of the gate
    int chain = 0, length = 0;  // of one epoch, in positions
    int position = 0;           // just after the gate, in epoch 0
  };

  // Environments have the first rows. Steps follow in the order of the sequence, so most gates are
  // a few rows before their node.
  int RowOf(int index) const {
    const int place = order_.PlaceOf(index);
    return place < 0 ? order_.RankOf(index) : ranks_ + place;
  }

  const Order& order_;
  const int ranks_;
  std::vector<int> edge_begin_;  // by row
  std::vector<Edge> edges_;
  const std::unique_ptr<int32_t[]> clocks_;  // of a block, by epoch, row and chain
};

}  // namespace agmm
