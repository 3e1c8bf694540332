// Exact answers about an order: for some of the chains, how far each of them is before each node.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/schedule/order.h"

namespace agmm {

// The clocks of kChains chains at a time, because those of all would take memory for each pair of a
// node and a chain. `order` outlives this.
class Clocks {
 public:
  static constexpr int kChains = 32;

  explicit Clocks(const Order& order)
      : order_(order), clocks_(size_t{2} * order.nodes() * kChains) {}
  // Computes those of the chains from block * kChains on.
  void Compute(int block);
  static int BlockOf(int chain) { return chain / kChains; }
  int blocks() const { return (order_.chains() + kChains - 1) / kChains; }

  // The number of positions of the block's chains that come before the start of `node`.
  const int32_t* Before(const Order::Node& node) const { return &clocks_[At(node)]; }
  // The same for one chain of the block.
  int32_t Before(const Order::Node& node, int chain) const { return Before(node)[chain % kChains]; }

 private:
  size_t At(const Order::Node& node) const {
    return (static_cast<size_t>(node.epoch) * order_.nodes() + node.index) * kChains;
  }
  void Join(const Order::Node& node);

  const Order& order_;
  int block_ = 0;
  std::vector<int32_t> clocks_;
};

}  // namespace agmm
