// The lanes of a rank in a plan: lane 0 multiplies, the ones behind it send.
#pragma once

#include <algorithm>

#include "kernels/schedule/problem.h"

namespace agmm {

inline constexpr int kComputeLane = 0;

// Sends take turns on several lanes, because with one the link would idle between two sends; on
// fewer for a large mesh, because Close and Verify take a pass over all steps for each few lanes of
// all ranks. Those within the node and those between nodes have lanes of their own at a rank that
// has both.
class SendLanes {
 public:
  explicit SendLanes(const Mesh& mesh) : count_(std::clamp(64 / mesh.size(), 2, 8)) {}

  int count() const { return count_; }
  // The first lane behind them.
  int end() const { return kComputeLane + 1 + count_; }
  // Says that the rank has a send of this kind. All of these calls precede those of Next.
  void Expect(bool between_nodes) { expected_[between_nodes] = true; }
  // The lane of the next send.
  int Next(bool between_nodes) {
    if (!expected_[0] || !expected_[1]) return kComputeLane + 1 + turn_[0]++ % count_;
    const int half = count_ / 2;
    return kComputeLane + 1 + turn_[between_nodes]++ % half + (between_nodes ? half : 0);
  }

 private:
  int count_;
  bool expected_[2] = {false, false};
  int turn_[2] = {0, 0};
};

}  // namespace agmm
