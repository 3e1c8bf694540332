// What happens before what: the graph of a schedule unrolled over two epochs in a row, with the
// environment of each rank in front of each. Shared by Verify and Close.
//
//   environment(r, e) -> every step of r in e -> environment(r, e + 1)
//   a lane's steps in their order
//   producer -> waiter, inside an epoch for lag 0, from one epoch to the next for lag 1
//   what a carried transfer waits for -> the multiply that carries it
//
// A step is one event: its edges in gate its start, its edges out leave from its end. Each `to` of
// a transfer at another rank is an event of its own, the arrival: it starts with the step, but only
// the signal that belongs to it comes from it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// The step field of an Event that is the environment of its rank, before the epoch's steps.
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
  struct Producer {
    Rank rank = 0;
    int step = 0;
    int position = 0;  // in Step::signals
  };

  // Takes 8 bytes for each pair of a step and a lane, over all ranks.
  // Errors: INVALID_ARGUMENT for a lane, carrier or slot out of range, a slot with two producers or
  // a wait for a slot with none; FAILED_PRECONDITION for a cycle.
  static absl::StatusOr<Order> Build(const Schedule& schedule);

  // Whether `x` is over before `y` starts, in every interleaving.
  bool Before(const Event& x, const Event& y) const;

  // One order of an epoch's steps, (rank, step), that keeps to every lane and every wait.
  const std::vector<std::pair<Rank, int>>& sequence() const { return sequence_; }

  // The event behind a slot, in `epoch`.
  Event Source(const Slot& slot, int epoch) const;

  // The step before `step` in its lane, or -1.
  int LanePredecessor(Rank rank, int step) const { return ranks_[rank].predecessor[step]; }

  // The transfers that the multiply `step` carries.
  const std::vector<int>& Carried(Rank rank, int step) const { return ranks_[rank].carried[step]; }

 private:
  struct Waiter {
    Rank rank = 0;
    int step = 0, lag = 0;
  };
  struct RankOrder {
    int first_chain = 0;  // of lane 0; the other lanes' follow
    int first_node = 0;   // environment and steps of epoch 0, then of epoch 1
    int steps = 0;
    std::vector<int> lane;         // of each step
    std::vector<int> position;     // of each step in its lane
    std::vector<int> predecessor;  // in its lane, or -1
    std::vector<int> lane_length;
    std::vector<std::vector<int>> carried;
    std::map<std::pair<int, int>, std::vector<Waiter>> arrivals;  // (step, to) -> who awaits it
  };

  absl::Status Index(const Schedule& schedule);
  absl::Status Sort(const Schedule& schedule);
  void Clock(const Schedule& schedule);

  // Chains are lanes through both epochs; the environment sits on its rank's lane 0. A step has two
  // positions in its chain: its start, and behind that its end.
  int ChainOf(const Event& event) const;
  int StartOf(const Event& event) const;
  int32_t* ClockOf(const Event& event);
  const int32_t* ClockOf(const Event& event) const;
  // The events whose ends gate `step`, in `epoch`: its lane (or launch), its waits, what it
  // carries.
  std::vector<Event> Gates(const Schedule& schedule, Rank rank, int step, int epoch) const;

  std::vector<RankOrder> ranks_;
  std::map<Slot, Producer> producers_;
  std::map<Slot, bool> is_arrival_;
  std::vector<std::pair<Rank, int>> sequence_;
  int chains_ = 0;
  // clocks_[node * chains_ + chain]: how many positions of the chain come before the node.
  std::vector<int32_t> clocks_;
};

}  // namespace agmm
