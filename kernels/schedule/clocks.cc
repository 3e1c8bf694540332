#include "kernels/schedule/clocks.h"

#include <algorithm>

namespace agmm {

void Clocks::Join(const Order::Node& node) {
  int32_t clock[kChains] = {};
  for (const Order::Gate& gate : order_.GatesOf(node.index)) {
    if (gate.lag > node.epoch) continue;
    const Order::Node from = {gate.index, node.epoch - gate.lag};
    const int32_t* before = Before(from);
    for (int c = 0; c < kChains; ++c) clock[c] = std::max(clock[c], before[c]);
    const int chain = order_.ChainOf(gate.index);
    if (BlockOf(chain) != block_) continue;
    // An arrival is on no chain, because those of a lane are not ordered among themselves: what it
    // gates is only known to be after the start of its step.
    int32_t& own = clock[chain % kChains];
    own = std::max(own, order_.StartOf(from) + (gate.arrival < 0 ? 2 : 1));
  }
  std::copy(clock, clock + kChains, &clocks_[At(node)]);
}

void Clocks::Compute(int block) {
  block_ = block;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int index = 0; index < order_.nodes(); ++index)
      if (order_.IsEnvironment(index)) Join({index, epoch});
    for (const auto& [rank, step] : order_.sequence()) Join(order_.NodeOf({rank, step, -1, epoch}));
  }
}

}  // namespace agmm
