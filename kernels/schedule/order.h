// Happens-before: the graph of a schedule unrolled over two epochs in a row, with the environment
// of each rank in front of each epoch. Shared by Verify and Close.
//
//   environment(r, e) -> every step of r in e -> environment(r, e + 1)
//   a lane's steps in their order
//   producer -> waiter, inside an epoch for lag 0, from one epoch to the next for lag 1
//   producers that a carried transfer waits for -> the multiply that carries it
//
// A step is one event: edges into it gate its start, edges out of it leave from its end. Each `to`
// of a transfer at another rank is an event of its own, an arrival, which starts with the step. The
// signal of that `to` leaves from the arrival.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// Event::step of the environment of a rank, before the epoch's steps.
inline constexpr int kEnvironment = -1;

struct Event {
  Rank rank = 0;
  int step = 0;
  int to = -1;    // the arrival at to[to], at another rank; -1: the step itself
  int epoch = 0;  // 0 or 1
  bool operator==(const Event&) const = default;
};

// "rank 3 lane 1 step 5".
std::string StepName(const Schedule& schedule, Rank rank, int step);

// Whether signals[position] belongs to an arrival at another rank.
bool IsArrival(const Step& step, Rank rank, int position);

class Order {
 public:
  // Takes 8 bytes of memory for each pair of a step and a lane, over all ranks.
  // Errors: INVALID_ARGUMENT for a lane, carrier or slot out of range, a slot with two producers or
  // a wait for a slot with none; FAILED_PRECONDITION for a cycle.
  static absl::StatusOr<Order> Build(const Schedule& schedule);

  // Whether `x` ends before `y` starts, in every interleaving.
  bool Before(const Event& x, const Event& y) const;

  // An order of an epoch's steps, (rank, step), that respects every lane and every wait.
  const std::vector<std::pair<Rank, int>>& sequence() const { return sequence_; }

  // The event that raises a slot in `epoch`.
  Event Source(const Slot& slot, int epoch) const;

  // The step before `step` in its lane, or -1.
  int LanePredecessor(Rank rank, int step) const { return ranks_[rank].predecessor[step]; }

  // The events whose ends gate `step` in `epoch`: its predecessor in the lane (or the launch), its
  // own waits, and those of the transfers that it carries.
  std::vector<Event> Gates(const Schedule& schedule, Rank rank, int step, int epoch) const;

 private:
  struct Waiter {
    Rank rank = 0;
    int step = 0, lag = 0;
  };
  struct RankOrder {
    int first_chain = 0;     // of lane 0; the other lanes' follow
    int64_t first_node = 0;  // environment and steps of epoch 0, then of epoch 1
    int steps = 0;
    std::vector<int> lane;         // of each step
    std::vector<int> position;     // of each step in its lane
    std::vector<int> predecessor;  // in its lane, or -1
    std::vector<int> lane_length;
    std::vector<std::vector<int>> carried;
    std::map<std::pair<int, int>, std::vector<Waiter>> arrivals;  // (step, to) -> its waiters
  };

  absl::Status Index(const Schedule& schedule);
  absl::Status Sort(const Schedule& schedule);
  void Clock(const Schedule& schedule);

  // A chain is a lane through both epochs; the environment is on its rank's lane 0. A step has two
  // positions in its chain: its start, and then its end.
  int ChainOf(const Event& event) const;
  int StartOf(const Event& event) const;
  // The node of the event's step or environment, whatever its `to`.
  int64_t NodeOf(const Event& event) const;
  int32_t* ClockOf(const Event& event);
  const int32_t* ClockOf(const Event& event) const;

  std::vector<RankOrder> ranks_;
  std::map<Slot, Event> producers_;  // in epoch 0
  std::vector<std::pair<Rank, int>> sequence_;
  int chains_ = 0;
  int64_t nodes_ = 0;
  // clocks_[node * chains_ + chain]: the number of positions of the chain before the node.
  std::vector<int32_t> clocks_;
};

}  // namespace agmm
