#include "tests/cuda/launched_order.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "tests/cuda/program_peers.h"

namespace agmm {
namespace {

constexpr int kSms = 132;  // of an H100

// Rewrites the steps of one rank.
class RankOrder {
 public:
  RankOrder(const std::vector<Step>& steps, const CudaProgram& program, Rank rank, int slots)
      : steps_(steps),
        program_(program),
        rank_(rank),
        next_slot_(slots),
        next_lane_(LaneCount(steps)) {}

  std::vector<Step> Run() {
    for (const std::vector<int>& lane : program_.lanes) {
      for (const int index : lane) {
        const LaunchUnit& unit = program_.units[index];
        if (unit.product.has_value()) {
          AddKernel(unit);
        } else {
          AddStep(unit);
        }
      }
    }
    return std::move(order_);
  }

 private:
  Slot NewSlot() { return {rank_, next_slot_++}; }

  void AddStep(const LaunchUnit& unit) {
    Step step = steps_[unit.steps[0]];
    step.waits = unit.waits;
    if (auto* const transfer = std::get_if<Transfer>(&step.op)) transfer->carrier = -1;
    order_.push_back(std::move(step));
  }

  void AddKernel(const LaunchUnit& unit) {
    const Slot begun = NewSlot();
    order_.push_back({Join(), unit.lane, unit.events, {begun}});
    Step end = {Join(), unit.lane};
    std::vector<Wait> loaded = {{begun}};  // all that the loader has waited for
    for (const ProductBlock& block : unit.product->blocks) {
      const int lane = next_lane_++;
      for (int i = block.first_piece; i < block.first_piece + block.pieces; ++i) {
        const ProductPiece& piece = unit.product->pieces[i];
        for (const int slot : piece.slots) {
          const Wait wait = {{rank_, slot}};
          if (!absl::c_linear_search(loaded, wait)) loaded.push_back(wait);
        }
        Step multiply = steps_[piece.step];
        absl::c_copy(multiply.signals, std::back_inserter(end.signals));
        multiply.lane = lane;
        multiply.waits = loaded;
        multiply.signals.clear();
        if (i + 1 == block.first_piece + block.pieces) AddToEnd(&multiply, &end);
        order_.push_back(std::move(multiply));
        const int carrier = static_cast<int>(order_.size()) - 1;
        for (const int send : piece.sends) AddSend(send, carrier, loaded, &end);
      }
    }
    order_.push_back(std::move(end));
  }

  void AddSend(int index, int carrier, const std::vector<Wait>& loaded, Step* end) {
    Step send = steps_[index];
    send.lane = next_lane_++;
    send.waits = loaded;
    std::get<Transfer>(send.op).carrier = carrier;
    std::copy(send.signals.begin() + 1, send.signals.end(), std::back_inserter(end->signals));
    send.signals.resize(1);
    AddToEnd(&send, end);
    order_.push_back(std::move(send));
  }

  // Lets the end of the kernel wait for the step.
  void AddToEnd(Step* step, Step* end) {
    const Slot ended = NewSlot();
    step->signals.push_back(ended);
    end->waits.push_back({ended});
  }

  const std::vector<Step>& steps_;
  const CudaProgram& program_;
  const Rank rank_;
  int next_slot_, next_lane_;
  std::vector<Step> order_;
};

// An epoch of all ranks, as their hosts submit it.
class Submission {
 public:
  Submission(const Schedule& schedule, const std::vector<CudaProgram>& programs)
      : schedule_(schedule), programs_(programs), positions_(programs.size()) {
    for (Rank rank = 0; rank < rank_count(); ++rank) {
      positions_[rank].resize(programs_[rank].lanes.size());
      for (const LaunchUnit& unit : programs_[rank].units)
        ForEachSend(unit, [&](int send) { raised_.insert(StepsOf(rank)[send].signals[0]); });
    }
  }

  std::vector<std::string> Run() {
    for (bool progressed = true; progressed;) {
      progressed = false;
      for (Rank rank = 0; rank < rank_count(); ++rank) {
        for (size_t lane = 0; lane < positions_[rank].size(); ++lane)
          while (Advance(rank, lane)) progressed = true;
      }
    }
    std::vector<std::string> stuck;
    for (Rank rank = 0; rank < rank_count(); ++rank) {
      for (size_t lane = 0; lane < positions_[rank].size(); ++lane) {
        if (IsDone(rank, lane)) continue;
        stuck.push_back(absl::StrFormat("rank %d lane %d step %d", rank, lane,
                                        UnitAt(rank, lane, positions_[rank][lane]).steps[0]));
      }
    }
    return stuck;
  }

 private:
  Rank rank_count() const { return static_cast<Rank>(programs_.size()); }
  const std::vector<Step>& StepsOf(Rank rank) const { return schedule_.ranks[rank]; }
  const LaunchUnit& UnitAt(Rank rank, size_t lane, size_t position) const {
    return programs_[rank].units[programs_[rank].lanes[lane][position]];
  }
  bool IsDone(Rank rank, size_t lane) const {
    return positions_[rank][lane] == programs_[rank].lanes[lane].size();
  }
  static bool IsInGroup(const LaunchUnit& unit) {
    return unit.product.has_value() && unit.product->in_group;
  }

  template <typename Visit>
  static void ForEachSend(const LaunchUnit& unit, const Visit& visit) {
    if (!unit.product.has_value()) return;
    for (const ProductPiece& piece : unit.product->pieces) absl::c_for_each(piece.sends, visit);
  }

  // Submits the next unit of the lane, or lets its rank arrive at its group. Returns false if
  // neither is possible yet.
  bool Advance(Rank rank, size_t lane) {
    if (IsDone(rank, lane)) return false;
    const LaunchUnit& unit = UnitAt(rank, lane, positions_[rank][lane]);
    if (!MayBegin(unit)) return false;
    if (IsInGroup(unit)) {
      if (!arrived_.contains(rank)) {
        if (!MayArrive(rank, lane)) return false;
        arrived_.insert(rank);
        return true;
      }
      const std::vector<Rank>& group = programs_[rank].group;
      if (group.empty() ||
          !absl::c_all_of(group, [&](Rank member) { return arrived_.contains(member); }))
        return false;
    }
    const auto raise = [&](int step) {
      raised_.insert(StepsOf(rank)[step].signals.begin(), StepsOf(rank)[step].signals.end());
    };
    absl::c_for_each(unit.steps, raise);
    ForEachSend(unit, raise);
    ++positions_[rank][lane];
    return true;
  }

  bool MayBegin(const LaunchUnit& unit) const {
    return absl::c_all_of(
        unit.waits, [&](const Wait& wait) { return wait.lag > 0 || raised_.contains(wait.slot); });
  }

  // True if all other lanes are submitted, and every unit of the lane up to its last kernel of the
  // group may begin.
  bool MayArrive(Rank rank, size_t lane) const {
    for (size_t other = 0; other < positions_[rank].size(); ++other)
      if (other != lane && !IsDone(rank, other)) return false;
    size_t end = programs_[rank].lanes[lane].size();
    while (!IsInGroup(UnitAt(rank, lane, end - 1))) --end;
    for (size_t at = positions_[rank][lane]; at < end; ++at)
      if (!MayBegin(UnitAt(rank, lane, at))) return false;
    return true;
  }

  const Schedule& schedule_;
  const std::vector<CudaProgram>& programs_;
  std::set<Slot> raised_;
  std::set<Rank> arrived_;                      // at their groups
  std::vector<std::vector<size_t>> positions_;  // of the next unit, by rank and lane
};

}  // namespace

absl::StatusOr<std::vector<CudaProgram>> LowerForAllRanks(const Problem& problem,
                                                          const Topology& topology,
                                                          const Schedule& schedule) {
  NoHeap heap;
  NoExecutor executor;
  NoTransport transport;
  const auto shared = std::make_shared<const Schedule>(schedule);
  std::vector<CudaProgram> programs;
  for (Rank self = 0; self < topology.rank_count(); ++self) {
    Peers peers;
    peers.self = self;
    peers.nodes = topology.node_of_rank;
    peers.islands = topology.island_of_rank;
    peers.transport = &transport;
    std::vector<CudaPeer> cuda;
    for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
      const bool here = topology.SameNode(rank, self);
      peers.heaps.push_back(here ? &heap : nullptr);
      peers.executors.push_back(here ? &executor : nullptr);
      CudaPeer& peer = cuda.emplace_back();
      peer.heap = here ? CUdeviceptr{1} << 40 : 0;
      peer.gpu = rank;
      peer.reachable = topology.CanLoad(rank, self);
      peer.island = topology.island_of_rank.empty() ? 0 : topology.island_of_rank[rank];
      peer.sms = kSms;
    }
    AGMM_ASSIGN_OR_RETURN(CudaProgram program,
                          LowerForCuda(RankPlan{problem, shared, peers}, cuda));
    programs.push_back(std::move(program));
  }
  return programs;
}

Schedule LaunchedOrder(const Schedule& schedule, const std::vector<CudaProgram>& programs) {
  const std::vector<int> slots = SlotCounts(schedule);
  Schedule launched = schedule;
  for (Rank rank = 0; rank < static_cast<Rank>(programs.size()); ++rank) {
    launched.ranks[rank] = RankOrder(schedule.ranks[rank], programs[rank], rank, slots[rank]).Run();
  }
  return launched;
}

std::vector<std::string> FindStuckUnits(const Schedule& schedule,
                                        const std::vector<CudaProgram>& programs) {
  return Submission(schedule, programs).Run();
}

}  // namespace agmm
