// Assembles a schedule from steps, the order between them, and uses of workspace bytes; adds the
// slots, relays and credits that enforce them.
#pragma once

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/schedule/schedule.h"

namespace agmm::test {

class ScheduleBuilder {
 public:
  using Op = int;   // a step
  using Use = int;  // bytes of a workspace that hold one block for a while
  struct Event {
    Op op = 0;
    int to = -1;  // the arrival at to[to]; -1: the step's end
  };

  // Lanes are drawn from at most four per rank.
  ScheduleBuilder(int ranks, std::mt19937_64& random);

  // Appends a join to a lane of `rank`. A step may depend only on what was emitted before it.
  Op Emit(Rank rank) { return EmitIn(rank, DrawLane(rank)); }
  Op EmitIn(Rank rank, int lane);
  // Appends a step that shares a tile pass with `before`, the last step of its lane: nothing comes
  // between them.
  Op EmitNext(Op before);
  int DrawLane(Rank rank);
  // Replaces the join's operation.
  void Set(Op op, StepOp what) { ops_[op].step.op = std::move(what); }

  // Orders the end of `from` before the start of `to`. An arrival at a third rank is relayed by a
  // join there.
  void AddEdge(Event from, Op to);

  // Finds room for `block` at `rank`, to be written by `writer`: new bytes, or those of a freed
  // use.
  Use Allocate(Rank rank, const Block& block, DType dtype, Event writer);
  const Place& PlaceOf(Use use) const { return uses_[use].place; }
  bool IsRead(Use use) const { return !uses_[use].users.empty(); }
  // Records that `reader` reads the bytes that the use's writer wrote.
  void Read(Use use, Op reader);
  // Records that `op` reads and writes the bytes, after the last op that did.
  void Update(Use use, Op op);
  // Records that no step reads it from here on. Requires that a step has read it.
  void Free(Use use) { regions_[uses_[use].region].free = true; }

  // Returns the schedule, with credits for each reader of a reused place, and some unneeded waits.
  Schedule Finish();

 private:
  struct OpState {
    Rank rank = 0;
    Step step;
    double time = 0;  // a step's dependencies have lower ones
  };
  struct UseState {
    Place place;
    int region = 0;
    Event writer;
    std::vector<Op> users;
  };
  struct Region {
    Rank rank = 0;
    int64_t offset = 0, bytes = 0;
    bool free = false;
    std::vector<Use> uses;
  };
  struct Edge {
    Event from;
    Op to = 0;
    int lag = 0;
  };

  void AddCredits();
  void AddNeedlessEdges();
  Slot NewSlot(Rank rank) { return {rank, next_slot_[rank]++}; }
  Slot SlotFor(const Event& from, Rank waiter);

  std::mt19937_64& random_;
  std::vector<int> lanes_, next_slot_;
  std::vector<int64_t> workspace_;
  std::vector<OpState> ops_;
  std::vector<UseState> uses_;
  std::vector<Region> regions_;
  std::vector<Edge> edges_;
};

}  // namespace agmm::test
