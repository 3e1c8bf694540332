#include "kernels/schedule/carriers.h"

#include <algorithm>

namespace agmm {

Carriers CarriersOf(const std::vector<Movement>& movements, const std::vector<Cell>& cells,
                    Rank rank) {
  const auto for_each_read = [&](const Cell& cell, auto use) {
    for (const Movement& input : movements) {
      if (input.consumer() != Consumer::kMultiplies) continue;
      const Block& block = cell.ReadOf(input.operand());
      for (int chunk : input.ChunksOf(block)) use(input, chunk, block);
    }
  };
  Carriers carriers;
  int latest = 0;  // the latest step that the cells so far wait for
  for (size_t begin = 0, end = 0; begin < cells.size(); begin = end) {
    // The cells of one tile pass, whose sum stays on chip until the last one.
    bool on_chip = true;
    while (on_chip) {
      const Cell& cell = cells[end++];
      on_chip = !cell.finish && cell.sum < 0;
      for_each_read(cell, [&](const Movement& input, int chunk, const Block&) {
        latest = std::max(latest, input.StepAt(rank, chunk));
      });
    }
    for (size_t i = begin; i < end; ++i) {
      for_each_read(cells[i], [&](const Movement& input, int chunk, const Block& block) {
        if (input.chunks().list[chunk].block == block && input.StepAt(rank, chunk) == latest)
          carriers.try_emplace({input.operand(), chunk}, static_cast<int>(i));
      });
    }
  }
  return carriers;
}

int CarriedLanes::Take(int carrier, int lanes) {
  last_.resize(lanes, 0);
  for (int i = 0; i < lanes; ++i) {
    const int lane = (next_ + i) % lanes;
    if (last_[lane] > carrier) continue;
    last_[lane] = carrier;
    next_ = lane + 1;
    return lane;
  }
  return -1;
}

}  // namespace agmm
