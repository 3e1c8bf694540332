// Happens-before: the graph of a schedule unrolled over two epochs in a row, with the environment
// of each rank in front of each epoch. Shared by Verify and Close.
//
//   environment(r, e) -> every step of r in e -> environment(r, e + 1), except relay lanes
//   a lane's steps in their order, also from one epoch to the next
//   producer -> waiter, inside an epoch for lag 0, from one epoch to the next for lag 1
//   producers that a carried transfer waits for -> the multiply that carries it
//
// sequence() also keeps a stricter order, in which the multiplies of a tile pass and the transfers
// that they carry start and end together, because a kernel that sends its tiles runs them as one.
//
// A step is one event: edges into it gate its start, edges out of it leave from its end. Each `to`
// of a transfer at another rank is an event of its own, an arrival, which starts with the step. The
// signal of that `to` leaves from the arrival.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/schedule/schedule.h"
#include "kernels/schedule/slot_table.h"

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

// Returns true if signals[position] belongs to an arrival at another rank.
bool IsArrival(const Step& step, Rank rank, int position);

// The graph in flat arrays: time and memory are linear in the steps and their waits. Class
// Questions answers questions about it.
class Order {
 public:
  // A step or an environment in one of the epochs.
  struct Node {
    int index = 0, epoch = 0;
    bool operator==(const Node&) const = default;
  };
  // An event that has to end before a node starts.
  struct Gate {
    int index = 0;     // of the node
    int arrival = -1;  // an arrival of that node; -1: its end
    int lag = 0;       // the number of epochs before the gated node's
    bool operator==(const Gate&) const = default;
  };
  struct Waiter {
    int index = 0, lag = 0;
  };

  // Errors: INVALID_ARGUMENT for a lane or slot out of range, a carrier other than a multiply of
  // the rank, a slot with two producers or a wait for a slot with none; FAILED_PRECONDITION for a
  // cycle in the stricter order.
  static absl::StatusOr<Order> Build(const Schedule& schedule);

  // An order of an epoch's steps, (rank, step), that respects every lane and every wait. The steps
  // of a bundle stand together.
  const std::vector<std::pair<Rank, int>>& sequence() const { return sequence_; }
  // Returns the event that raises a slot in `epoch`.
  Event Source(const Slot& slot, int epoch) const;
  // Returns the step before `step` in its lane and epoch, or -1.
  int LanePredecessor(Rank rank, int step) const;

  // Returns the number of nodes in one epoch.
  int nodes() const { return static_cast<int>(rank_.size()); }
  // The gates of all nodes, in the order of the nodes.
  const std::vector<Gate>& AllGates() const { return gates_; }
  // Returns the position of a node's first gate among them.
  int FirstGate(int index) const { return gate_begin_[index]; }
  Node NodeOf(const Event& event) const {
    return {first_node_[event.rank] + event.step + 1, event.epoch};
  }
  Rank RankOf(int index) const { return rank_[index]; }
  bool IsEnvironment(int index) const { return place_[index] < 0; }
  // Returns true for a step of a relay lane, which is not ordered with any environment.
  bool IsRelay(int index) const { return is_relay_[chain_[index]]; }
  // Returns the place in sequence(); -1 for environments.
  int PlaceOf(int index) const { return place_[index]; }
  // The predecessor in the lane, the step's own waits, and those of the transfers that it carries,
  // in this order. The predecessor of a lane's first step is the environment, or in a relay lane
  // the last step of the epoch before. For an environment: the end of the previous epoch.
  absl::Span<const Gate> GatesOf(int index) const {
    return absl::MakeConstSpan(gates_).subspan(gate_begin_[index],
                                               gate_begin_[index + 1] - gate_begin_[index]);
  }
  // The number of an arrival, and the steps that it gates.
  int ArrivalOf(const Event& event) const { return arrival_begin_[NodeOf(event).index] + event.to; }
  absl::Span<const Waiter> WaitersOf(int arrival) const {
    return absl::MakeConstSpan(waiters_).subspan(
        waiter_begin_[arrival], waiter_begin_[arrival + 1] - waiter_begin_[arrival]);
  }

  // A chain is a lane through both epochs; the environment is on its rank's lane 0. A step has two
  // positions in its chain: its start, and then its end.
  int chains() const { return static_cast<int>(chain_length_.size()); }
  int ChainOf(int index) const { return chain_[index]; }
  int StartOf(const Node& node) const {
    return 2 * (node.epoch * chain_length_[chain_[node.index]] + position_[node.index]);
  }

 private:
  struct Producer {
    Rank rank = -1;  // -1: none
    int step = 0, to = -1;
  };

  absl::Status IndexSteps(const Schedule& schedule);
  absl::Status IndexWaits(const Schedule& schedule);
  absl::Status Sort(const Schedule& schedule);
  // Returns the error for bundles that never start. `missing`: by bundle, the gates that are left.
  absl::Status Cycle(const Schedule& schedule, const std::vector<int>& missing) const;
  void IndexBundles(const Schedule& schedule);
  // Returns true if a gate of a node also gates the node's bundle. Inside a bundle, the step before
  // the node in its lane does not, if both are multiplies or both are carried.
  bool GatesBundle(const Gate& gate, int index) const;
  // Appends the gates of `wait`, which gates the node `index`.
  absl::Status AddGate(const Schedule& schedule, Rank rank, int step, const Wait& wait);

  std::vector<int> first_node_;  // by rank; one more at the end
  // By node.
  std::vector<int> rank_, chain_, position_, place_, arrival_begin_, gate_begin_;
  // The bundle of each step: the first multiply of the tile pass that contains or carries it, or
  // else the step itself. `members_`: the nodes by bundle, in their order.
  std::vector<int> bundle_, members_, member_begin_;
  std::vector<bool> is_carried_;
  std::vector<int> chain_length_;  // nodes of one epoch
  std::vector<bool> is_relay_;     // by chain
  std::vector<Gate> gates_;
  std::vector<std::pair<int, int>> carried_;  // (node of a multiply, step of a transfer), sorted
  std::vector<int> waiter_begin_;             // by arrival
  std::vector<Waiter> waiters_;
  SlotTable<Producer> producers_;
  std::vector<std::pair<Rank, int>> sequence_;
};

}  // namespace agmm
