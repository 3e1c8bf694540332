#include "daemon/sequencer/figures.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/schedule/access.h"

namespace agmm {
namespace {

// A baseline is valid for this long. A job that is faster than one of its parts by more than this
// factor makes it stale; 10 % is noise.
constexpr absl::Duration kMaxAge = absl::Minutes(10);
constexpr double kMaxGain = 1.1;
// See Differ.
constexpr double kMaxSpread = 0.25;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Returns the slowest rank's time of each recorded epoch, oldest first. Empty unless all ranks have
// reported the same number.
std::vector<double> SlowestRankUs(const Mesh& mesh, const RankReports& reports) {
  std::vector<double> slowest;
  for (int rank : mesh.ranks) {
    const auto it = reports.find(rank);
    if (it == reports.end()) return {};
    const auto& epochs = it->second.epoch_us();
    if (slowest.empty()) slowest.resize(epochs.size(), 0);
    if (epochs.size() != static_cast<int>(slowest.size())) return {};
    for (int i = 0; i < epochs.size(); ++i) slowest[i] = std::max(slowest[i], epochs[i]);
  }
  return slowest;
}

// Returns T, the median of the epochs without the first, which warms up; 0 if unknown.
double EpochUs(const Mesh& mesh, const RankReports& reports) {
  std::vector<double> epochs = SlowestRankUs(mesh, reports);
  if (epochs.size() > 1) epochs.erase(epochs.begin());
  return Median(std::move(epochs));
}

bool Multiplies(const ScheduleFacts& facts) {
  return std::any_of(facts.multiplies.begin(), facts.multiplies.end(),
                     [](int multiply) { return multiply != kNoMultiply; });
}

}  // namespace

ScheduleFacts FactsOf(const Problem& problem, const Topology& topology, const Schedule& schedule) {
  ScheduleFacts facts;
  for (const Traffic& traffic : TrafficOf(topology, schedule)) {
    facts.memory_bytes += traffic.own_island;
    facts.staged_bytes += traffic.other_islands;
    facts.network_bytes += traffic.other_nodes;
  }
  for (const std::vector<Step>& steps : schedule.ranks) {
    int count = 0, multiply_step = -1;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (const auto* transfer = std::get_if<Transfer>(&steps[i].op)) {
        facts.transfers = true;
        facts.c_travels |= problem.Writes(transfer->block.operand);
      } else if (std::holds_alternative<Reduce>(steps[i].op)) {
        facts.transfers = facts.c_travels = true;  // terms may be read in place
      } else if (std::holds_alternative<Multiply>(steps[i].op)) {
        ++count;
        multiply_step = static_cast<int>(i);
      }
    }
    facts.step_counts.push_back(static_cast<int>(steps.size()));
    facts.multiplies.push_back(count == 1 ? multiply_step : count == 0 ? kNoMultiply : -1);
  }
  return facts;
}

PartTimes PartTimesOf(const ScheduleFacts& facts, const Mesh& mesh, const RankReports& reports) {
  PartTimes parts;
  if (!Multiplies(facts)) {
    parts.gather_us = EpochUs(mesh, reports);
    return parts;
  }
  for (size_t rank = 0; rank < facts.multiplies.size(); ++rank) {
    if (facts.multiplies[rank] == kNoMultiply) continue;
    const auto it = reports.find(mesh.ranks[rank]);
    if (it == reports.end() || it->second.steps_size() != facts.step_counts[rank] ||
        facts.multiplies[rank] < 0) {
      return {};
    }
    const v1::StepTime& time = it->second.steps(facts.multiplies[rank]);
    if (time.end_us() <= time.start_us()) return {};
    parts.gemm_us = std::max(parts.gemm_us, time.end_us() - time.start_us());
    double last_us = time.end_us();
    if (facts.c_travels) {
      for (const v1::StepTime& step : it->second.steps())
        last_us = std::max(last_us, step.end_us());
    }
    if (facts.transfers)
      parts.gather_us = std::max(parts.gather_us, time.start_us() + last_us - time.end_us());
  }
  return parts;
}

Baseline Combine(const Baselines& last, uint64_t generation, absl::Time now) {
  Baseline both = last.serial;
  const Baseline& gather = last.gather;
  const bool holds =
      gather.job > 0 && gather.generation == generation && now - gather.end <= kMaxAge;
  double& gather_us = both.parts.gather_us;
  if (holds && (both.job == 0 || gather.parts.gather_us < gather_us))
    gather_us = gather.parts.gather_us;
  return both;
}

std::string StaleText(const Baseline& baseline, const v1::JobFigures& figures, uint64_t generation,
                      absl::Time end) {
  if (baseline.generation != generation) return "nodes have come or gone since";
  if (end - baseline.end > kMaxAge)
    return absl::StrCat("they are older than ", absl::FormatDuration(kMaxAge));
  if (figures.gemm_us() > kMaxGain * figures.time_us())
    return "this job took less time than T_gemm, so the load has changed since";
  if (figures.gather_us() > kMaxGain * figures.time_us()) {
    return "this job took less time than T_ag, so the gather of serial is not the fastest, or the "
           "link or the load has changed since";
  }
  return "";
}

bool Differ(const PartTimes& one, const PartTimes& other) {
  const auto differ = [](double a, double b) {
    return std::abs(a - b) > kMaxSpread * std::min(a, b);
  };
  return differ(one.gemm_us, other.gemm_us) || differ(one.gather_us, other.gather_us);
}

v1::JobFigures FiguresOf(const Problem& problem, const ScheduleFacts& facts, const PartTimes& parts,
                         const RankReports& reports) {
  v1::JobFigures figures;
  figures.set_time_us(EpochUs(problem.mesh, reports));
  figures.set_gemm_us(parts.gemm_us);
  figures.set_gather_us(parts.gather_us);
  if (Multiplies(facts)) figures.set_flop_count(FlopCount(problem));
  for (const auto& [path, bytes] : {std::pair<const char*, int64_t>{"memory", facts.memory_bytes},
                                    {"host memory", facts.staged_bytes},
                                    {"network", facts.network_bytes}}) {
    if (bytes == 0) continue;
    v1::PathBytes* moved = figures.add_moved();
    moved->set_path(path);
    moved->set_bytes(bytes);
  }
  if (figures.time_us() <= 0) return figures;
  figures.set_tflops(figures.flop_count() / figures.time_us() * 1e-6);
  if (parts.gemm_us > 0)
    figures.set_overlap(std::max(parts.gemm_us, parts.gather_us) / figures.time_us());
  return figures;
}

}  // namespace agmm
