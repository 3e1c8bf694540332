#include "kernels/predict/simulate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <queue>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/predict/fair_share.h"
#include "kernels/predict/step_usage.h"
#include "kernels/schedule/order.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

constexpr int kEpochs = 2;

int64_t Rounded(double ns) { return static_cast<int64_t>(std::llround(ns)); }

// A node of Order in one of the epochs.
struct Run {
  int missing = 0;          // gates that have not opened
  int left = 0;             // activities that have not ended
  int cause = -1;           // the run that opened the last gate
  bool by_arrival = false;  // the cause did so by an arrival
  int64_t ready = 0, start = 0, end = 0, arrived = 0;
};

class Simulator {
 public:
  Simulator(const Problem& problem, const Platform& platform, const Schedule& schedule,
            const Order& order)
      : problem_(problem),
        device_(platform.machine.device),
        schedule_(schedule),
        order_(order),
        network_(platform) {
    IndexSteps();
    MakeActivities(platform);
    IndexWaiters();
    share_.emplace(network_.resource_count());
    runs_.resize(kEpochs * order_.nodes());
  }

  absl::Status Execute();
  Simulation Result() const;

 private:
  // A gate as its source sees it.
  struct Waiter {
    int node = 0, lag = 0;
    bool by_signal = false;  // else it follows in a lane
  };
  struct NodeActivity {
    int node = 0;
    bool arrives = false;  // at another rank
    int arrival = -1;      // the arrival that opens gates then; -1: none does
    int first_usage = 0, last_usage = 0;
    double latency_ns = 0;
  };

  void IndexSteps();
  void MakeActivities(const Platform& platform);
  void IndexWaiters();

  const Step& StepOf(int node) const { return schedule_.ranks[order_.RankOf(node)][step_[node]]; }
  int RunOf(int node, int epoch) const { return epoch * order_.nodes() + node; }
  static_assert(kEpochs == 2);
  int NodeOf(int run) const { return run < order_.nodes() ? run : run - order_.nodes(); }
  int EpochOf(int run) const { return run < order_.nodes() ? 0 : 1; }
  // The multiply that carries a transfer.
  int CarrierOf(int node) const {
    return EnvironmentOf(order_.RankOf(node)) + 1 + std::get<Transfer>(StepOf(node).op).carrier;
  }
  int EnvironmentOf(Rank rank) const { return order_.NodeOf({rank, kEnvironment}).index; }

  // The ways in which a run may open gates: its end, or one of the arrivals.
  void Open(int run, int source, int64_t time);
  void OpenGate(int cause, bool by_arrival, int node, int epoch, int64_t time);
  void Start(int run, int64_t now);
  // Returns the time of the next end or start; nothing if there is none.
  std::optional<int64_t> NextTime();
  void EndActivities(int64_t now);
  void EndActivity(int run, const NodeActivity& activity, int64_t now);
  void EndRun(int run, int64_t now);

  void AddSteps(int64_t begin, Simulation* result) const;
  void AddResources(Simulation* result) const;
  void AddChain(Rank slowest, Simulation* result) const;
  std::string ChainText(int run, int next, int64_t time) const;
  // The last run of a rank's epoch, as its environment sees it.
  int LastOf(Rank rank, int epoch) const;

  const Problem& problem_;
  const DeviceRates& device_;
  const Schedule& schedule_;
  const Order& order_;
  Network network_;
  std::optional<FairShare> share_;

  // By node.
  std::vector<int> step_, first_activity_;
  std::vector<NodeActivity> activities_;      // by node
  std::vector<Usage> usages_;                 // by activity
  std::vector<std::pair<int, int>> carried_;  // (node of a multiply, node it carries), sorted
  std::vector<bool> is_carried_;
  // By source: nodes, and then arrivals.
  std::vector<int> waiter_begin_;
  std::vector<Waiter> waiters_;

  std::vector<Run> runs_;
  // By run of a multiply: the activities of transfers that it carries, which wait for its end.
  absl::flat_hash_map<int, std::vector<const NodeActivity*>> held_;
  int ended_ = 0;
  using Start_ = std::pair<int64_t, int>;  // time and run
  std::priority_queue<Start_, std::vector<Start_>, std::greater<Start_>> starts_;
};

void Simulator::IndexSteps() {
  step_.assign(order_.nodes(), kEnvironment);
  is_carried_.assign(order_.nodes(), false);
  for (Rank rank = 0; rank < static_cast<Rank>(schedule_.ranks.size()); ++rank) {
    const std::vector<Step>& steps = schedule_.ranks[rank];
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const int node = order_.NodeOf({rank, s}).index;
      step_[node] = s;
      const auto* transfer = std::get_if<Transfer>(&steps[s].op);
      if (transfer == nullptr || transfer->carrier < 0) continue;
      carried_.emplace_back(order_.NodeOf({rank, transfer->carrier}).index, node);
      is_carried_[node] = true;
    }
  }
  absl::c_sort(carried_);
}

void Simulator::MakeActivities(const Platform& platform) {
  StepUsage usage(problem_, platform, schedule_.workspace_bytes, &network_);
  std::vector<Activity> of_step;
  for (int node = 0; node < order_.nodes(); ++node) {
    first_activity_.push_back(static_cast<int>(activities_.size()));
    if (order_.IsEnvironment(node)) continue;
    const Step& step = StepOf(node);
    usage.Of(step, order_.RankOf(node), &of_step);
    for (const Activity& one : of_step) {
      const int first = static_cast<int>(usages_.size());
      usages_.insert(usages_.end(), one.usages.begin(), one.usages.end());
      const bool opens = one.to >= 0 && one.to < static_cast<int>(step.signals.size());
      const Event event = {order_.RankOf(node), step_[node], one.to};
      activities_.push_back({node, one.to >= 0, opens ? order_.ArrivalOf(event) : -1, first,
                             static_cast<int>(usages_.size()), one.latency_ns});
    }
  }
  first_activity_.push_back(static_cast<int>(activities_.size()));
}

void Simulator::IndexWaiters() {
  const auto source_of = [&](const Order::Gate& gate) {
    return gate.arrival < 0 ? gate.index : order_.nodes() + gate.arrival;
  };
  int sources = order_.nodes();
  for (const Order::Gate& gate : order_.AllGates())
    sources = std::max(sources, source_of(gate) + 1);
  waiter_begin_.assign(sources + 2, 0);
  for (const Order::Gate& gate : order_.AllGates()) ++waiter_begin_[source_of(gate) + 2];
  for (int i = 2; i < sources + 2; ++i) waiter_begin_[i] += waiter_begin_[i - 1];
  waiters_.resize(order_.AllGates().size());
  for (int node = 0; node < order_.nodes(); ++node) {
    bool is_first = true;
    for (const Order::Gate& gate : order_.GatesOf(node)) {
      // All but the first gate of a step are slots; those of an environment are ends of lanes.
      const bool by_signal = !is_first && !order_.IsEnvironment(node);
      waiters_[waiter_begin_[source_of(gate) + 1]++] = {node, gate.lag, by_signal};
      is_first = false;
    }
  }
  waiter_begin_.pop_back();
}

void Simulator::OpenGate(int cause, bool by_arrival, int node, int epoch, int64_t time) {
  const int index = RunOf(node, epoch);
  Run& run = runs_[index];
  if (time >= run.ready) {
    run.ready = time;
    run.cause = cause;
    run.by_arrival = by_arrival;
  }
  if (--run.missing > 0) return;
  const int64_t cost = order_.IsEnvironment(node) ? 0 : Rounded(device_.step_ns);
  starts_.emplace(run.ready + cost, index);
}

void Simulator::Open(int run, int source, int64_t time) {
  if (source + 1 >= static_cast<int>(waiter_begin_.size())) return;
  const Rank rank = order_.RankOf(NodeOf(run));
  const bool by_arrival = source >= order_.nodes();
  for (int i = waiter_begin_[source]; i < waiter_begin_[source + 1]; ++i) {
    const Waiter& waiter = waiters_[i];
    const int epoch = EpochOf(run) + waiter.lag;
    if (epoch >= kEpochs) continue;
    double delay = 0;
    if (waiter.by_signal) {
      const Rank other = order_.RankOf(waiter.node);
      delay = device_.signal_ns;
      // The latency of an arrival is part of it.
      if (!by_arrival && other != rank) delay += network_.Between(rank, other).latency_ns;
    }
    OpenGate(run, by_arrival, waiter.node, epoch, time + Rounded(delay));
  }
}

void Simulator::Start(int index, int64_t now) {
  Run& run = runs_[index];
  const int node = NodeOf(index);
  run.start = now;
  const auto [first, last] =
      std::equal_range(carried_.begin(), carried_.end(), std::pair{node, 0},
                       [](const auto& x, const auto& y) { return x.first < y.first; });
  for (auto at = first; at != last; ++at)
    OpenGate(index, /*by_arrival=*/false, at->second, EpochOf(index), now);
  const int begin = first_activity_[node], end = first_activity_[node + 1];
  run.left = end - begin;
  for (int i = begin; i < end; ++i) {
    const NodeActivity& activity = activities_[i];
    if (activity.first_usage == activity.last_usage) {
      EndActivity(index, activity, now);
      continue;
    }
    const int tag = EpochOf(index) * static_cast<int>(activities_.size()) + i;
    share_->Begin(now, tag,
                  absl::MakeConstSpan(usages_).subspan(activity.first_usage,
                                                       activity.last_usage - activity.first_usage));
  }
  if (begin == end) EndRun(index, now);
}

void Simulator::EndActivity(int index, const NodeActivity& activity, int64_t now) {
  Run& run = runs_[index];
  if (is_carried_[activity.node]) {
    // The last tiles leave when the multiply that loads them ends.
    const int carrier = RunOf(CarrierOf(activity.node), EpochOf(index));
    if (runs_[carrier].left > 0) {
      held_[carrier].push_back(&activity);
      return;
    }
  }
  run.arrived = std::max(run.arrived, now);
  if (activity.arrives) {
    const int64_t arrived = now + Rounded(activity.latency_ns);
    run.arrived = std::max(run.arrived, arrived);
    if (activity.arrival >= 0) Open(index, order_.nodes() + activity.arrival, arrived);
  }
  if (--run.left == 0) EndRun(index, now);
}

void Simulator::EndRun(int index, int64_t now) {
  Run& run = runs_[index];
  run.end = now;
  run.arrived = std::max(run.arrived, now);
  ++ended_;
  Open(index, NodeOf(index), now);
  const auto held = held_.find(index);
  if (held == held_.end()) return;
  const std::vector<const NodeActivity*> activities = std::move(held->second);
  held_.erase(held);
  for (const NodeActivity* activity : activities)
    EndActivity(RunOf(activity->node, EpochOf(index)), *activity, now);
}

std::optional<int64_t> Simulator::NextTime() {
  const std::optional<int64_t> end = share_->NextEnd();
  if (starts_.empty()) return end;
  const int64_t start = starts_.top().first;
  return end ? std::min(*end, start) : start;
}

void Simulator::EndActivities(int64_t now) {
  // Copied, because ends of runs begin activities.
  const std::vector<int> ended = share_->End(now);
  const int count = static_cast<int>(activities_.size());
  for (const int tag : ended) {
    const NodeActivity& activity = activities_[tag % count];
    EndActivity(RunOf(activity.node, tag / count), activity, now);
  }
}

absl::Status Simulator::Execute() {
  for (int index = 0; index < static_cast<int>(runs_.size()); ++index) {
    const int node = NodeOf(index), epoch = EpochOf(index);
    Run& run = runs_[index];
    run.missing = is_carried_[node] ? 1 : 0;
    for (const Order::Gate& gate : order_.GatesOf(node)) run.missing += gate.lag <= epoch;
    if (run.missing == 0) starts_.emplace(0, index);
  }
  for (std::optional<int64_t> now = 0; now; now = NextTime()) {
    if (share_->NextEnd() == now) EndActivities(*now);
    // Rates are computed once for all activities that begin at the same time.
    while (!starts_.empty() && starts_.top().first == *now) {
      const int run = starts_.top().second;
      starts_.pop();
      Start(run, *now);
    }
  }
  if (ended_ == static_cast<int>(runs_.size())) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%d of %d steps of two epochs never start; verify the schedule first",
                      static_cast<int>(runs_.size()) - ended_, runs_.size()));
}

int Simulator::LastOf(Rank rank, int epoch) const {
  int last = RunOf(EnvironmentOf(rank), epoch);
  for (const Order::Gate& gate : order_.GatesOf(EnvironmentOf(rank))) {
    const int run = RunOf(gate.index, epoch);
    if (runs_[run].end > runs_[last].end) last = run;
  }
  return last;
}

void Simulator::AddSteps(int64_t begin, Simulation* result) const {
  const Rank ranks = static_cast<Rank>(schedule_.ranks.size());
  result->steps.resize(ranks);
  for (Rank rank = 0; rank < ranks; ++rank) {
    const int environment = EnvironmentOf(rank);
    std::vector<std::pair<int64_t, int64_t>> multiplies;
    for (size_t s = 0; s < schedule_.ranks[rank].size(); ++s) {
      const int node = environment + static_cast<int>(s) + 1;
      const Run& run = runs_[RunOf(node, kEpochs - 1)];
      const Order::Gate& before = order_.GatesOf(node).front();
      const int64_t ready = runs_[RunOf(before.index, kEpochs - 1 - before.lag)].end;
      result->steps[rank].push_back(
          {ready - begin, run.start - begin, run.end - begin, run.arrived - begin});
      if (std::holds_alternative<Multiply>(StepOf(node).op))
        multiplies.emplace_back(run.start, run.end);
    }
    RankUse use = {runs_[RunOf(environment, kEpochs - 1)].end - begin,
                   runs_[LastOf(rank, kEpochs - 1)].end - begin};
    absl::c_sort(multiplies);
    int64_t until = 0;
    for (const auto& [start, end] : multiplies) {
      use.multiply_ns += std::max<int64_t>(0, end - std::max(start, until));
      until = std::max(until, end);
    }
    result->ranks.push_back(use);
  }
}

void Simulator::AddResources(Simulation* result) const {
  std::vector<double> busy(network_.resource_count(), 0);
  for (const Usage& usage : usages_) busy[usage.resource] += usage.ns;
  for (Resource resource = 0; resource < network_.resource_count(); ++resource)
    busy[resource] += network_.BurstNs(resource);
  for (Resource resource = 0; resource < network_.resource_count(); ++resource) {
    if (busy[resource] == 0) continue;
    result->resources.push_back(
        {network_.NameOf(resource), Rounded(busy[resource]), network_.IsLink(resource)});
  }
  absl::c_stable_sort(result->resources, [](const ResourceUse& x, const ResourceUse& y) {
    return x.busy_ns > y.busy_ns;
  });
}

std::string Simulator::ChainText(int index, int next, int64_t time) const {
  const int node = NodeOf(index);
  const Rank rank = order_.RankOf(node);
  const auto name = [&](Rank one) { return absl::StrCat("rank ", problem_.mesh.ranks[one]); };
  const std::string us = FormatMicros(static_cast<double>(time) * 1e-3);
  if (order_.IsEnvironment(node))
    return absl::StrFormat("%s, %s: its epoch begins", name(rank), us);
  const auto* transfer = std::get_if<Transfer>(&StepOf(node).op);
  if (next >= 0 && transfer != nullptr && order_.RankOf(NodeOf(next)) != rank) {
    return absl::StrFormat("%s waits %s for %s from %s", name(order_.RankOf(NodeOf(next))), us,
                           PartText(problem_, transfer->block), name(transfer->from.rank));
  }
  return absl::StrFormat("%s, %s: %s", name(rank), us, Describe(problem_, StepOf(node)));
}

void Simulator::AddChain(Rank slowest, Simulation* result) const {
  const int64_t begin = runs_[RunOf(EnvironmentOf(slowest), kEpochs - 1)].end;
  int next = -1;
  int index = LastOf(slowest, kEpochs - 1);
  int64_t until = runs_[index].end;
  // May lead through the environments of other ranks, and through the epoch before.
  while (index >= 0 && until > begin) {
    const Run& run = runs_[index];
    const int64_t since = run.cause < 0 ? begin : std::clamp(run.ready, begin, until);
    if (until > since) {
      const Rank rank = order_.RankOf(NodeOf(index));
      const bool waits = next >= 0 && order_.RankOf(NodeOf(next)) != rank;
      result->chain.push_back({rank, step_[NodeOf(index)], since - begin, until - begin, waits,
                               ChainText(index, next, until - since)});
    }
    until = since;
    next = index;
    index = run.cause;
  }
  absl::c_reverse(result->chain);
}

Simulation Simulator::Result() const {
  Simulation result;
  const Rank ranks = static_cast<Rank>(schedule_.ranks.size());
  int64_t begin = 0;
  Rank slowest = 0;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const int64_t from = runs_[RunOf(EnvironmentOf(rank), kEpochs - 1)].end;
    if (rank == 0 || from < begin) begin = from;
    const int64_t time = runs_[LastOf(rank, kEpochs - 1)].end - from;
    if (time <= result.time_ns) continue;
    result.time_ns = time;
    slowest = rank;
  }
  AddSteps(begin, &result);
  AddResources(&result);
  // Work that ranks have done ahead, in the epoch before, gains nothing in the long run.
  if (!result.resources.empty())
    result.time_ns = std::max(result.time_ns, result.resources.front().busy_ns);
  AddChain(slowest, &result);
  return result;
}

}  // namespace

absl::StatusOr<Simulation> Simulate(const Problem& problem, const Platform& platform,
                                    const Schedule& schedule) {
  AGMM_RETURN_IF_ERROR(CheckPlaces(platform));
  AGMM_ASSIGN_OR_RETURN(const Order order, Order::Build(schedule));
  Simulator simulator(problem, platform, schedule, order);
  AGMM_RETURN_IF_ERROR(simulator.Execute());
  return simulator.Result();
}

}  // namespace agmm
