#include "tests/schedule/schedule_builder.h"

#include <algorithm>

#include "kernels/base/units.h"

namespace agmm::test {

ScheduleBuilder::ScheduleBuilder(int ranks, std::mt19937_64& random)
    : random_(random), next_slot_(ranks, 0), workspace_(ranks, 0) {
  for (int rank = 0; rank < ranks; ++rank) lanes_.push_back(1 + static_cast<int>(random_() % 4));
}

int ScheduleBuilder::DrawLane(Rank rank) { return static_cast<int>(random_() % lanes_[rank]); }

ScheduleBuilder::Op ScheduleBuilder::EmitIn(Rank rank, int lane) {
  OpState op;
  op.rank = rank;
  op.step.lane = lane;
  op.time = static_cast<double>(ops_.size());
  ops_.push_back(op);
  return static_cast<Op>(ops_.size()) - 1;
}

ScheduleBuilder::Op ScheduleBuilder::EmitNext(Op before) {
  const Op op = EmitIn(ops_[before].rank, ops_[before].step.lane);
  ops_[op].time = ops_[before].time;
  return op;
}

void ScheduleBuilder::AddEdge(Event from, Op to) {
  if (from.to >= 0) {
    const auto& transfer = std::get<Transfer>(ops_[from.op].step.op);
    const Rank at = transfer.to[from.to].rank;
    if (at == ops_[from.op].rank) {
      from.to = -1;
    } else if (at != ops_[to].rank) {
      // Emitted after `to`, but nothing can depend on it yet, so it may as well come just before.
      const Op relay = Emit(at);
      ops_[relay].time = ops_[to].time - 0.5;
      edges_.push_back({from, relay, 0});
      from = {relay, -1};
    }
  }
  edges_.push_back({from, to, 0});
}

ScheduleBuilder::Use ScheduleBuilder::Allocate(Rank rank, const Block& block, DType dtype,
                                               Event writer) {
  const int64_t row = RoundUp(block.cols.size() * SizeOf(dtype), kRowAlignBytes);
  const int64_t pitch = row + (random_() % 3 == 0 ? kRowAlignBytes : 0);
  const int64_t bytes = pitch * block.rows.size();
  // The rest of a row is enough for the block and the padding that it may own.
  const int64_t spare = pitch / SizeOf(dtype) - block.cols.size();
  const int64_t in_row =
      random_() % 2 == 0 ? static_cast<int64_t>(random_() % (spare + 1)) * SizeOf(dtype) : 0;
  int region = -1;
  for (int i = 0; i < static_cast<int>(regions_.size()); ++i) {
    const Region& r = regions_[i];
    if (r.rank == rank && r.free && r.bytes >= bytes && random_() % 3 != 0) region = i;
  }
  if (region < 0) {
    const int64_t offset = workspace_[rank] + static_cast<int64_t>(random_() % 3) * kRowAlignBytes;
    region = static_cast<int>(regions_.size());
    regions_.push_back({rank, offset, bytes, false, {}});
    workspace_[rank] = offset + bytes;
  } else {
    for (Op user : uses_[regions_[region].uses.back()].users) AddEdge({user}, writer.op);
  }
  const Use use = static_cast<Use>(uses_.size());
  regions_[region].free = false;
  regions_[region].uses.push_back(use);
  uses_.push_back(
      {{rank, kWorkspace, regions_[region].offset + in_row, pitch, dtype}, region, writer, {}});
  return use;
}

void ScheduleBuilder::Read(Use use, Op reader) {
  AddEdge(uses_[use].writer, reader);
  uses_[use].users.push_back(reader);
}

void ScheduleBuilder::Update(Use use, Op op) {
  std::vector<Op>& users = uses_[use].users;
  AddEdge({users.empty() ? uses_[use].writer.op : users.back()}, op);
  users.push_back(op);
}

void ScheduleBuilder::AddCredits() {
  for (const Region& region : regions_) {
    const Op writer = uses_[region.uses.front()].writer.op;
    for (Op user : uses_[region.uses.back()].users) edges_.push_back({{user}, writer, 1});
  }
}

void ScheduleBuilder::AddNeedlessEdges() {
  for (size_t i = random_() % (ops_.size() / 4 + 1); i > 0; --i) {
    const Op from = static_cast<Op>(random_() % ops_.size()), to = random_() % ops_.size();
    const int lag = ops_[from].time < ops_[to].time ? static_cast<int>(random_() % 2) : 1;
    edges_.push_back({{from}, to, lag});
  }
}

Slot ScheduleBuilder::SlotFor(const Event& from, Rank waiter) {
  std::vector<Slot>& signals = ops_[from.op].step.signals;
  if (from.to >= 0) return signals[from.to];
  const auto* transfer = std::get_if<Transfer>(&ops_[from.op].step.op);
  for (size_t i = 0; i < signals.size(); ++i) {
    const bool arrival = transfer != nullptr && i < transfer->to.size() &&
                         transfer->to[i].rank != ops_[from.op].rank;
    if (!arrival && signals[i].rank == waiter && random_() % 2 == 0) return signals[i];
  }
  signals.push_back(NewSlot(waiter));
  return signals.back();
}

Schedule ScheduleBuilder::Finish() {
  AddCredits();
  AddNeedlessEdges();
  for (OpState& op : ops_) {
    const auto* transfer = std::get_if<Transfer>(&op.step.op);
    if (transfer == nullptr) continue;
    size_t positions = 0;  // up to the last destination at another rank
    for (size_t i = 0; i < transfer->to.size(); ++i) {
      if (transfer->to[i].rank != op.rank) positions = i + 1;
    }
    for (size_t i = 0; i < positions; ++i) op.step.signals.push_back(NewSlot(transfer->to[i].rank));
  }
  std::vector<std::vector<Step>> steps(lanes_.size());
  for (const OpState& op : ops_) steps[op.rank].push_back(op.step);
  std::vector<std::vector<bool>> relays;
  for (Rank rank = 0; rank < static_cast<Rank>(steps.size()); ++rank)
    relays.push_back(RelayLanes(steps[rank], rank));
  std::shuffle(edges_.begin(), edges_.end(), random_);
  for (const Edge& edge : edges_) {
    const OpState &from = ops_[edge.from.op], &to = ops_[edge.to];
    const auto relay = [&](const OpState& op) -> bool { return relays[op.rank][op.step.lane]; };
    const bool implied =
        edge.from.to < 0 && from.rank == to.rank &&
        ((edge.lag == 1 && !relay(from) && !relay(to)) || from.step.lane == to.step.lane);
    if (implied && random_() % 4 != 0) continue;
    const Wait wait = {SlotFor(edge.from, to.rank), edge.lag};
    std::vector<Wait>& waits = ops_[edge.to].step.waits;
    if (std::find(waits.begin(), waits.end(), wait) == waits.end()) waits.push_back(wait);
  }
  Schedule schedule;
  schedule.algorithm = "random";
  schedule.workspace_bytes = *std::max_element(workspace_.begin(), workspace_.end());
  schedule.ranks.resize(lanes_.size());
  for (const OpState& op : ops_) schedule.ranks[op.rank].push_back(op.step);
  return schedule;
}

}  // namespace agmm::test
