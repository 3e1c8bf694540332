// The lanes of a rank in a plan: lane 0 multiplies, the others send.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/schedule/problem.h"

namespace agmm {

inline constexpr int kComputeLane = 0;

// Sends take turns on several lanes, because with one lane the link would idle between two sends. A
// large mesh uses fewer, because Close and Verify make a pass over all steps for every few lanes.
// At a rank with both kinds, sends within the node and sends between nodes have separate lanes.
class SendLanes {
 public:
  explicit SendLanes(const Mesh& mesh) : count_(std::clamp(64 / mesh.size(), 2, 8)) {}

  int count() const { return count_; }
  // Returns the first lane after the send lanes.
  int end() const { return kComputeLane + 1 + count_; }
  // Announces that the rank has a send of this kind. All calls of Expect must precede those of
  // Next.
  void Expect(bool between_nodes) { expected_[between_nodes] = true; }
  // Returns the lane of the next send.
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

// The lanes of one rank for carried sends. The sends of a lane are in the order of the multiplies
// that carry them.
class CarriedLanes {
 public:
  // Returns a lane from 0 to `lanes` - 1 on which a send can follow the earlier sends, or -1. Takes
  // the lanes in turn.
  int Take(int carrier, int lanes) {
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

 private:
  std::vector<int> last_;  // the last carrier, by lane
  int next_ = 0;
};

}  // namespace agmm
