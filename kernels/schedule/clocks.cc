#include "kernels/schedule/clocks.h"

#include <algorithm>

namespace agmm {

Clocks::Clocks(const Order& order)
    : order_(order),
      ranks_(order.nodes() - static_cast<int>(order.sequence().size())),
      clocks_(std::make_unique_for_overwrite<int32_t[]>(size_t{2} * order.nodes() * kChains)) {
  std::vector<int> index_of(order.nodes());
  for (int index = 0; index < order.nodes(); ++index) index_of[RowOf(index)] = index;
  edges_.reserve(order.AllGates().size());
  edge_begin_.reserve(order.nodes() + 1);
  for (int index : index_of) {
    edge_begin_.push_back(static_cast<int>(edges_.size()));
    for (const Order::Gate& gate : order.GatesOf(index)) {
      // An arrival is on no chain, because arrivals of a lane are not ordered among themselves:
      // events that it gates are only known to be after the start of its step.
      const int first = order.StartOf({gate.index, 0});
      edges_.push_back({RowOf(gate.index), gate.lag, order.ChainOf(gate.index),
                        order.StartOf({gate.index, 1}) - first,
                        first + (gate.arrival < 0 ? 2 : 1)});
    }
  }
  edge_begin_.push_back(static_cast<int>(edges_.size()));
}

void Clocks::Compute(int block) {
  const int first_chain = block * kChains, rows = order_.nodes();
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int row = 0; row < rows; ++row) {
      int32_t* clock = &clocks_[(static_cast<size_t>(epoch) * rows + row) * kChains];
      std::fill(clock, clock + kChains, 0);
      for (int e = edge_begin_[row]; e < edge_begin_[row + 1]; ++e) {
        const Edge& edge = edges_[e];
        const int from = epoch - edge.lag;
        if (from < 0) continue;
        const int32_t* before = &clocks_[(static_cast<size_t>(from) * rows + edge.row) * kChains];
        for (int c = 0; c < kChains; ++c) clock[c] = std::max(clock[c], before[c]);
        const auto own = static_cast<unsigned>(edge.chain - first_chain);
        if (own < kChains) clock[own] = std::max(clock[own], edge.position + from * edge.length);
      }
    }
  }
}

}  // namespace agmm
