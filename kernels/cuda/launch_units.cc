#include "kernels/cuda/launch_units.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// SMs of a GPU that kernels which wait leave to others, because a wait may need one of them: sums
// (also those of an earlier epoch, on relay lanes), products of cuBLASLt and copies within the GPU.
constexpr int kSmsForOthers = 4;

class Grouping {
 public:
  Grouping(const RankPlan& plan, const LoweredRank& rank, const std::vector<CudaPeer>& peers,
           const std::vector<KernelSteps>& steps)
      : plan_(plan), rank_(rank), peers_(peers), all_(steps), mine_(steps[plan.peers.self]) {
    for (Rank other = 0; other < static_cast<Rank>(plan.schedule->ranks.size()); ++other) {
      const std::vector<Step>& of_rank = plan.schedule->ranks[other];
      for (size_t i = 0; i < of_rank.size(); ++i) {
        for (size_t part = 0; part < of_rank[i].signals.size(); ++part) {
          const Slot& slot = of_rank[i].signals[part];
          if (slot.rank != plan.peers.self) continue;
          Producer& producer = producers_[slot.index];
          const auto* const transfer = std::get_if<Transfer>(&of_rank[i].op);
          const bool arrives = transfer != nullptr && part < transfer->to.size();
          // A stream of this GPU brings what arrives from another island.
          producer.can_raise = plan.IsLocal(other) &&
                               (arrives || peers[other].island == peers[plan.peers.self].island);
          producer.is_kernel = part == 0 && other < static_cast<Rank>(all_.size()) &&
                               i < all_[other].carried.size() && all_[other].carried[i];
        }
      }
    }
    FindLateSlots();
  }

  LaunchUnits Run() {
    made_.unit_of_step.resize(rank_.steps.size(), -1);
    made_.polled.resize(rank_.slots, false);
    for (size_t i = 0; i < rank_.steps.size(); ++i) {
      const auto* const copy = std::get_if<CopyOp>(&rank_.steps[i].op);
      if (copy != nullptr && mine_.carried[i]) sends_[CarrierOf(i)].push_back(static_cast<int>(i));
    }
    for (const std::vector<int>& lane : rank_.lanes) {
      std::vector<int>& units = made_.lanes.emplace_back();
      for (size_t at = 0; at < lane.size();) {
        if (mine_.carried[lane[at]]) {
          ++at;
          continue;
        }
        units.push_back(static_cast<int>(made_.units.size()));
        made_.units.push_back(TakeUnit(lane, &at));
      }
    }
    for (LaunchUnit& unit : made_.units) Finish(unit);
    return std::move(made_);
  }

 private:
  // Finds the slots of multiplies for which no step waits in the same epoch.
  void FindLateSlots() {
    for (size_t i = 0; i < rank_.steps.size(); ++i) {
      if (!mine_.computed[i]) continue;
      for (const Slot& slot : plan_.steps()[i].signals) least_lag_[{slot.rank, slot.index}] = -1;
    }
    if (least_lag_.empty()) return;
    for (const std::vector<Step>& of_rank : plan_.schedule->ranks) {
      for (const Step& step : of_rank) {
        for (const Wait& wait : step.waits) {
          const auto least = least_lag_.find({wait.slot.rank, wait.slot.index});
          if (least == least_lag_.end()) continue;
          least->second = least->second < 0 ? wait.lag : std::min(least->second, wait.lag);
        }
      }
    }
  }

  struct Producer {
    bool can_raise = false;  // it can store to the memory of this GPU
    bool is_kernel = false;  // a kernel raises it in the middle
  };

  int CarrierOf(size_t step) const { return std::get<Transfer>(plan_.steps()[step].op).carrier; }

  // Takes the steps of one unit out of a lane, from `at` on.
  LaunchUnit TakeUnit(const std::vector<int>& lane, size_t* at) {
    LaunchUnit unit;
    unit.lane = rank_.steps[lane[*at]].lane;
    if (!mine_.computed[lane[*at]]) {
      unit.steps.push_back(lane[(*at)++]);
      return unit;
    }
    unit.product.emplace();
    do {
      AddPass(lane, at, &unit);
    } while (*at < lane.size() && mine_.computed[lane[*at]] && TakesAnother(lane, *at, unit));
    return unit;
  }

  static size_t EndOfPass(const std::vector<int>& lane, size_t at, const LoweredRank& rank) {
    while (!std::get<MultiplyOp>(rank.steps[lane[at]].op).finish) ++at;
    return at + 1;
  }

  void AddPass(const std::vector<int>& lane, size_t* at, LaunchUnit* unit) {
    ProductLaunch& launch = *unit->product;
    const size_t end = EndOfPass(lane, *at, rank_);
    ProductBlock& block = launch.blocks.emplace_back();
    block.first_piece = static_cast<int>(launch.pieces.size());
    block.pieces = static_cast<int>(end - *at);
    for (; *at < end; ++*at) {
      const int step = lane[*at];
      const auto sends = sends_.find(step);
      std::vector<int> slots = SlotsToPoll(step, unit);
      launch.pieces.push_back(
          {step, std::move(slots), sends == sends_.end() ? std::vector<int>() : sends->second});
      unit->steps.push_back(step);
    }
  }

  // True if the tile pass at `at` can follow the unit's last one in the same launch.
  bool TakesAnother(const std::vector<int>& lane, size_t at, const LaunchUnit& unit) const {
    const ProductLaunch& launch = *unit.product;
    // A kernel raises slots at its end alone, unless it sends.
    if (absl::c_any_of(plan_.steps()[unit.steps.back()].signals, [&](const Slot& slot) {
          return least_lag_.at({slot.rank, slot.index}) < 1;
        })) {
      return false;
    }
    const size_t end = EndOfPass(lane, at, rank_);
    if (launch.pieces.size() + (end - at) > sm90::kMaxPieces ||
        launch.blocks.size() == sm90::kMaxBlocks) {
      return false;
    }
    const MultiplyOp &first = FinishOf(unit.steps.back()),
                     &next = std::get<MultiplyOp>(rank_.steps[lane[end - 1]].op);
    return first.a.dtype == next.a.dtype && first.out.dtype == next.out.dtype;
  }

  const MultiplyOp& FinishOf(int step) const { return std::get<MultiplyOp>(rank_.steps[step].op); }

  bool IsOfKernel(int slot) const {
    const auto producer = producers_.find(slot);
    return producer != producers_.end() && producer->second.is_kernel;
  }
  bool MayPoll(int slot) const {
    const auto producer = producers_.find(slot);
    return producer != producers_.end() && producer->second.can_raise;
  }

  // Returns the slots for which the kernel itself waits before a step that follows those of `unit`;
  // the unit's stream waits for the rest. The kernel keeps the order of its pieces' waits, so what
  // an earlier one awaits need not be repeated.
  std::vector<int> SlotsToPoll(int step, LaunchUnit* unit) const {
    std::vector<Wait> waits;
    for (const Wait& wait : rank_.steps[step].waits) {
      if (wait.lag == 0 && !absl::c_linear_search(unit->waits, wait)) waits.push_back(wait);
    }
    std::stable_partition(waits.begin(), waits.end(),
                          [&](const Wait& wait) { return IsOfKernel(wait.slot.index); });
    std::vector<int> polled;
    for (const Wait& wait : waits) {
      unit->waits.push_back(wait);
      const int slot = wait.slot.index;
      // A launch may begin at once, so its first step waits like any other.
      const bool polls = IsOfKernel(slot) || (MayPoll(slot) && !unit->steps.empty() &&
                                              polled.size() < static_cast<size_t>(sm90::kMaxWaits));
      if (polls) {
        polled.push_back(slot);
      } else {
        unit->events.push_back(wait);
      }
    }
    return polled;
  }

  // Fills in the waits, and chooses the kernel.
  void Finish(LaunchUnit& unit) {
    const int index = static_cast<int>(&unit - made_.units.data());
    std::set<int> polled;
    if (unit.product.has_value()) {
      for (const ProductPiece& piece : unit.product->pieces) {
        polled.insert(piece.slots.begin(), piece.slots.end());
        for (const int send : piece.sends) made_.unit_of_step[send] = index;
        if (!piece.sends.empty()) unit.product->in_group = true;
      }
    }
    for (const int slot : polled) {
      made_.polled[slot] = true;
      if (IsOfKernel(slot)) unit.product->in_group = true;
    }
    for (const int step : unit.steps) {
      made_.unit_of_step[step] = index;
      for (const Wait& wait : rank_.steps[step].waits) {
        if (!absl::c_linear_search(unit.waits, wait)) unit.waits.push_back(wait);
      }
    }
    for (const Wait& wait : unit.waits) {
      const bool polls = wait.lag == 0 && polled.contains(wait.slot.index);
      if (!polls && !absl::c_linear_search(unit.events, wait)) unit.events.push_back(wait);
    }
    if (unit.product.has_value()) Choose(unit, !polled.empty());
  }

  void Choose(LaunchUnit& unit, bool polls) const {
    sm90::ProductProblem problem;
    problem.even = true;
    for (const ProductBlock& block : unit.product->blocks) {
      const int last = unit.product->pieces[block.first_piece + block.pieces - 1].step;
      const MultiplyOp& op = FinishOf(last);
      problem.in = op.a.dtype;
      problem.out = op.out.dtype;
      problem.rows = std::max(problem.rows, op.rows);
      problem.even = problem.even && CeilDiv(op.rows, int64_t{sm90::kTileRows}) % sm90::kPair == 0;
      problem.cols = std::max(problem.cols, op.n);
      problem.tiles_rows += RoundUp(op.rows, int64_t{sm90::kTileRows});
    }
    problem.sends = absl::c_any_of(unit.product->pieces,
                                   [](const ProductPiece& piece) { return !piece.sends.empty(); });
    const CudaPeer& self = peers_[plan_.peers.self];
    problem.sms = self.sms;
    // Beside a kernel of another rank that waits, two free SMs may be too far apart for a cluster.
    problem.clusters = self.tenants > 1 ? 0 : self.clusters;
    if (polls) {
      // All kernels that wait on one GPU fit on it together.
      problem.sms = std::max(1, (self.sms - kSmsForOthers) / self.tenants);
      problem.clusters = std::max(0, problem.clusters - kSmsForOthers / sm90::kPair);
    }
    // FindKernelSteps has asked for each pass, so this succeeds.
    unit.product->config = *sm90::ChooseProduct(problem);
    for (ProductBlock& block : unit.product->blocks) {
      const MultiplyOp& op = FinishOf(unit.product->pieces[block.first_piece].step);
      block.first_tile = unit.product->tiles;
      const sm90::ProductConfig& config = unit.product->config;
      block.tiles = static_cast<int>(
          RoundUp(CeilDiv(op.rows, int64_t{sm90::kTileRows}), int64_t{config.cluster}) *
          CeilDiv(op.n, int64_t{config.tile_cols}));
      unit.product->tiles += block.tiles;
    }
  }

  const RankPlan& plan_;
  const LoweredRank& rank_;
  const std::vector<CudaPeer>& peers_;
  const std::vector<KernelSteps>& all_;
  const KernelSteps& mine_;
  std::map<int, Producer> producers_;  // by slot of this rank
  // The least lag of the waits for a slot of a multiply, by rank and index; -1: none is known.
  absl::flat_hash_map<std::pair<Rank, int>, int> least_lag_;
  std::map<int, std::vector<int>> sends_;  // carried transfers by carrier
  LaunchUnits made_;
};

}  // namespace

LaunchUnits MakeLaunchUnits(const RankPlan& plan, const LoweredRank& rank,
                            const std::vector<CudaPeer>& peers,
                            const std::vector<KernelSteps>& steps) {
  return Grouping(plan, rank, peers, steps).Run();
}

}  // namespace agmm
