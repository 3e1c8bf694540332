#include "kernels/cuda/kernel_steps.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/sm90/product_config.h"
#include "kernels/schedule/send_lanes.h"

namespace agmm {
namespace {

const Multiply* MultiplyOf(const Step& step) { return std::get_if<Multiply>(&step.op); }

class Finder {
 public:
  Finder(const RankPlan& plan, const std::vector<CudaPeer>& peers) : plan_(plan), peers_(peers) {}

  std::vector<KernelSteps> Run(std::string* not_carried) {
    found_.resize(rank_count());
    const bool has_carriers = HasCarriers();
    if (has_carriers || peers_[plan_.peers.self].sms > 0) FindWaiters();
    for (Rank rank = 0; rank < rank_count(); ++rank) {
      if (rank == plan_.peers.self || (has_carriers && plan_.IsLocal(rank))) FindProducts(rank);
    }
    if (!has_carriers) return std::move(found_);
    *not_carried = WhyNoneIsCarried();
    if (not_carried->empty()) FindCarried(not_carried);
    return std::move(found_);
  }

 private:
  struct Waiter {
    const Step* step = nullptr;
    int lag = 0;
  };
  // A transfer of a rank that its carrier's kernel may send.
  struct Candidate {
    Rank rank = 0;
    int step = 0;
  };

  static std::pair<Rank, int> KeyOf(const Slot& slot) { return {slot.rank, slot.index}; }
  Rank rank_count() const { return static_cast<Rank>(plan_.schedule->ranks.size()); }
  const std::vector<Step>& StepsOf(Rank rank) const { return plan_.schedule->ranks[rank]; }

  // Finds the waits for slots that multiplies and carried transfers raise.
  void FindWaiters() {
    for (Rank rank = 0; rank < rank_count(); ++rank) {
      if (!plan_.IsLocal(rank)) continue;
      for (const Step& step : StepsOf(rank)) {
        const auto* const transfer = std::get_if<Transfer>(&step.op);
        if (MultiplyOf(step) == nullptr && (transfer == nullptr || transfer->carrier < 0) &&
            !std::holds_alternative<Join>(step.op))
          continue;
        for (const Slot& slot : step.signals) waiters_[KeyOf(slot)];
      }
    }
    for (const std::vector<Step>& steps : plan_.schedule->ranks) {
      for (const Step& step : steps) {
        for (const Wait& wait : step.waits) {
          const auto waiters = waiters_.find(KeyOf(wait.slot));
          if (waiters != waiters_.end()) waiters->second.push_back({&step, wait.lag});
        }
      }
    }
  }

  // Marks the multiplies of a rank, one tile pass after the other.
  void FindProducts(Rank rank) {
    const std::vector<Step>& steps = StepsOf(rank);
    KernelSteps& found = found_[rank];
    found.computed.resize(steps.size(), false);
    found.refused.resize(steps.size());
    found.carried.resize(steps.size(), false);
    std::map<int, std::vector<int>> pass_of_lane;
    for (size_t i = 0; i < steps.size(); ++i) {
      const Multiply* const multiply = MultiplyOf(steps[i]);
      if (multiply == nullptr) continue;
      std::vector<int>& pass = pass_of_lane[steps[i].lane];
      if (!multiply->accumulate || multiply->acc.has_value()) pass.clear();
      pass.push_back(static_cast<int>(i));
      if (!multiply->finish && !multiply->acc.has_value()) continue;
      const std::string why = WhyRefused(rank, pass);
      for (const int step : pass) {
        found.computed[step] = why.empty();
        found.refused[step] = why;
      }
      pass.clear();
    }
  }

  std::string WhyRefused(Rank rank, const std::vector<int>& pass) const {
    if (peers_[rank].sms == 0) return "products of a device without kernels for them";
    if (pass.size() > sm90::kMaxPieces) {
      return absl::StrCat("sums of ", pass.size(), " parts, more than ", sm90::kMaxPieces);
    }
    for (const int index : pass) {
      const Step& step = StepsOf(rank)[index];
      const Multiply& multiply = *MultiplyOf(step);
      if (multiply.acc.has_value()) return "sums that wait in memory for their next part";
      if (multiply.a.empty() || multiply.b.empty()) return "empty products";
      if (index != pass.back() &&
          absl::c_any_of(step.signals, [&](const Slot& slot) { return IsAwaitedInEpoch(slot); })) {
        return "sums whose parts make room for later ones";
      }
    }
    const Multiply& last = *MultiplyOf(StepsOf(rank)[pass.back()]);
    const auto config = sm90::ChooseProduct({.in = last.a_place.dtype,
                                             .out = last.out.dtype,
                                             .rows = last.c.rows.size(),
                                             .cols = last.c.cols.size(),
                                             .tiles_rows = last.c.rows.size(),
                                             .sms = peers_[rank].sms});
    return config.ok() ? "" : std::string(config.status().message());
  }

  // Returns false only if all waits for the slot are known, and each is for an earlier epoch.
  bool IsAwaitedInEpoch(const Slot& slot) const {
    const auto waiters = waiters_.find(KeyOf(slot));
    return waiters == waiters_.end() || waiters->second.empty() ||
           absl::c_any_of(waiters->second, [](const Waiter& waiter) { return waiter.lag == 0; });
  }

  // True if only joins wait for it in the same epoch, behind the multiplies of their rank, and no
  // step waits for these joins.
  bool IsAwaitedOnlyByJoins(const Slot& slot) const {
    const auto waiters = waiters_.find(KeyOf(slot));
    if (waiters == waiters_.end() || waiters->second.empty()) return false;
    return absl::c_all_of(waiters->second, [&](const Waiter& waiter) {
      if (waiter.lag > 0) return true;
      return std::holds_alternative<Join>(waiter.step->op) && waiter.step->lane == kComputeLane &&
             absl::c_none_of(waiter.step->signals,
                             [&](const Slot& next) { return IsAwaitedInEpoch(next); });
    });
  }

  bool HasCarriers() const {
    for (Rank rank = 0; rank < rank_count(); ++rank) {
      for (const Step& step : StepsOf(rank)) {
        const auto* const transfer = std::get_if<Transfer>(&step.op);
        if (plan_.IsLocal(rank) && transfer != nullptr && transfer->carrier >= 0) return true;
      }
    }
    return false;
  }

  // Kernels that send wait for kernels that may not have been submitted. NOTES.md shows that no
  // cycle of waits exists under these conditions.
  std::string WhyNoneIsCarried() const {
    const std::vector<Operand> inputs = plan_.problem.Inputs();
    for (Rank rank = 0; rank < rank_count(); ++rank) {
      if (!plan_.IsLocal(rank)) continue;
      const CudaPeer& peer = peers_[rank];
      const int world_rank = plan_.WorldRank(rank);
      if (peer.sms == 0) return absl::StrCat("GPU ", peer.gpu, " has no kernels that send");
      if (peer.tenants > 1) {
        return absl::StrCat("GPU ", peer.gpu, " runs ", peer.tenants,
                            " devices, so a kernel could wait for one that is behind it");
      }
      if (!peer.reaches_all) {
        return absl::StrCat("GPU ", peer.gpu,
                            " takes copies of other jobs through pinned memory, and a kernel could "
                            "be behind one");
      }
      for (const Step& step : StepsOf(rank)) {
        const auto* const transfer = std::get_if<Transfer>(&step.op);
        const bool moves_results =
            std::holds_alternative<Reduce>(step.op) ||
            (transfer != nullptr && !absl::c_linear_search(inputs, transfer->block.operand));
        if (moves_results)
          return absl::StrCat("rank ", world_rank, " moves results in the same epoch");
        if (MultiplyOf(step) != nullptr && absl::c_any_of(step.signals, [&](const Slot& slot) {
              return IsAwaitedInEpoch(slot) && !IsAwaitedOnlyByJoins(slot);
            })) {
          return absl::StrCat("copies wait for products of rank ", world_rank,
                              " in the same epoch");
        }
      }
    }
    return "";
  }

  // Marks the transfers that kernels send: the largest set in which every arrival is awaited by
  // kernels alone, because a stream cannot wait for a kernel that goes on running.
  void FindCarried(std::string* not_carried) {
    std::vector<Candidate> candidates;
    waits_.resize(rank_count());
    for (Rank rank = 0; rank < rank_count(); ++rank) {
      if (plan_.IsLocal(rank)) CountWaits(rank);
      std::map<int, int> sends;  // by carrier
      for (size_t i = 0; plan_.IsLocal(rank) && i < StepsOf(rank).size(); ++i) {
        const auto* const transfer = std::get_if<Transfer>(&StepsOf(rank)[i].op);
        if (transfer == nullptr || transfer->carrier < 0) continue;
        const std::string why = WhyNotCarried(rank, StepsOf(rank)[i], *transfer);
        if (!why.empty()) {
          *not_carried = why;
        } else if (sends[transfer->carrier]++ == sm90::kMaxSends) {
          *not_carried =
              absl::StrCat("a kernel sends a chunk to at most ", sm90::kMaxSends, " ranks");
        } else if (sends[transfer->carrier] <= sm90::kMaxSends) {
          candidates.push_back({rank, static_cast<int>(i)});
          found_[rank].carried[i] = true;
        }
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      // A step has no wait that an earlier one of its lane implies, and a stream cannot wait for
      // what a kernel sends. So a lane is carried as a whole.
      const std::set<std::pair<Rank, int>> copied = LanesWithCopies();
      for (const Candidate& one : candidates) {
        if (!found_[one.rank].carried[one.step]) continue;
        std::string why;
        if (!KernelsAwait(one)) why = "copies send some of them on";
        if (copied.contains({one.rank, StepsOf(one.rank)[one.step].lane}))
          why = "some have a lane with copies";
        if (why.empty()) continue;
        found_[one.rank].carried[one.step] = false;
        *not_carried = why;
        changed = true;
      }
    }
  }

  std::string WhyNotCarried(Rank rank, const Step& step, const Transfer& transfer) const {
    const Multiply& carrier = *MultiplyOf(StepsOf(rank)[transfer.carrier]);
    if (!found_[rank].computed[transfer.carrier])
      return absl::StrCat("cuBLASLt computes ", found_[rank].refused[transfer.carrier]);
    if (transfer.to.size() != 1 || !plan_.IsLocal(transfer.to[0].rank))
      return "some leave the node";
    if (peers_[transfer.to[0].rank].island != peers_[rank].island)
      return "some GPUs have no peer access";
    if (transfer.block != carrier.a || transfer.from != carrier.a_place)
      return "kernels send blocks of A alone";
    if (carrier.accumulate || !carrier.finish) return "kernels do not send parts of a sum";
    // A kernel raises these slots at its end.
    for (size_t part = 1; part < step.signals.size(); ++part) {
      if (IsAwaitedInEpoch(step.signals[part])) return "places are used again in the same epoch";
    }
    return "";
  }

  // True if only kernels wait for the transfer's arrival, and in the same epoch.
  bool KernelsAwait(const Candidate& one) const {
    const Step& step = StepsOf(one.rank)[one.step];
    const Rank to = std::get<Transfer>(step.op).to[0].rank;
    const auto waiters = waiters_.find(KeyOf(step.signals[0]));
    if (waiters == waiters_.end() || waiters->second.empty()) return false;
    return absl::c_all_of(waiters->second, [&](const Waiter& waiter) {
      const auto index = static_cast<size_t>(waiter.step - StepsOf(to).data());
      const auto* const transfer = std::get_if<Transfer>(&waiter.step->op);
      const bool sent_on = transfer != nullptr && found_[to].carried[index];
      return waiter.lag == 0 && (sent_on || found_[to].computed[index]) &&
             waits_[to][sent_on ? transfer->carrier : index] <= sm90::kMaxWaits;
    });
  }

  // Counts the waits of each multiply in the epoch, with those of the transfers that it carries.
  void CountWaits(Rank rank) {
    std::vector<std::set<Slot>> slots(StepsOf(rank).size());
    for (size_t i = 0; i < slots.size(); ++i) {
      const Step& step = StepsOf(rank)[i];
      const auto* const transfer = std::get_if<Transfer>(&step.op);
      std::set<Slot>& gates =
          slots[transfer != nullptr && transfer->carrier >= 0 ? transfer->carrier : i];
      for (const Wait& wait : step.waits) {
        if (wait.lag == 0) gates.insert(wait.slot);
      }
    }
    for (const std::set<Slot>& gates : slots)
      waits_[rank].push_back(static_cast<int>(gates.size()));
  }

  // Returns the lanes of this node, by rank and number, on which a step is not carried.
  std::set<std::pair<Rank, int>> LanesWithCopies() const {
    std::set<std::pair<Rank, int>> lanes;
    for (Rank rank = 0; rank < rank_count(); ++rank) {
      for (size_t i = 0; plan_.IsLocal(rank) && i < StepsOf(rank).size(); ++i)
        if (!found_[rank].carried[i]) lanes.insert({rank, StepsOf(rank)[i].lane});
    }
    return lanes;
  }

  const RankPlan& plan_;
  const std::vector<CudaPeer>& peers_;
  absl::flat_hash_map<std::pair<Rank, int>, std::vector<Waiter>> waiters_;  // by slot
  std::vector<KernelSteps> found_;                                          // by rank
  std::vector<std::vector<int>> waits_;  // by rank and multiply; see CountWaits
};

}  // namespace

std::vector<Rank> RanksOfGroup(const Schedule& schedule, const std::vector<KernelSteps>& steps) {
  std::set<Rank> ranks;
  for (Rank rank = 0; rank < static_cast<Rank>(steps.size()); ++rank) {
    for (size_t i = 0; i < steps[rank].carried.size(); ++i) {
      if (!steps[rank].carried[i]) continue;
      ranks.insert({rank, std::get<Transfer>(schedule.ranks[rank][i].op).to[0].rank});
    }
  }
  return {ranks.begin(), ranks.end()};
}

std::vector<KernelSteps> FindKernelSteps(const RankPlan& plan, const std::vector<CudaPeer>& peers,
                                         std::string* not_carried) {
  return Finder(plan, peers).Run(not_carried);
}

}  // namespace agmm
