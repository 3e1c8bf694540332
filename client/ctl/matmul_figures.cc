#include "client/ctl/matmul_figures.h"

#include <algorithm>
#include <map>

namespace agmm {
namespace {

// There has to be something to hide before hiding it can be measured.
constexpr double kLeastToHide = 0.05;

// By rank of the mesh; empty unless every rank has a report.
std::vector<const v1::RankReport*> ReportsByRank(const v1::Job& job, const Mesh& mesh) {
  std::map<int, const v1::RankReport*> by_world_rank;
  for (const v1::RankReport& report : job.ranks()) by_world_rank[report.rank()] = &report;
  std::vector<const v1::RankReport*> reports;
  for (int world_rank : mesh.ranks) {
    const auto it = by_world_rank.find(world_rank);
    if (it == by_world_rank.end()) return {};
    reports.push_back(it->second);
  }
  return reports;
}

}  // namespace

std::vector<double> SlowestRankMs(const v1::Job& job, const Mesh& mesh) {
  std::vector<double> slowest;
  for (const v1::RankReport* report : ReportsByRank(job, mesh)) {
    if (slowest.empty()) slowest.resize(report->epoch_us_size(), 0);
    if (report->epoch_us_size() != static_cast<int>(slowest.size())) return {};
    for (int i = 0; i < report->epoch_us_size(); ++i)
      slowest[i] = std::max(slowest[i], report->epoch_us(i) / 1000);
  }
  return slowest;
}

std::optional<double> Median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::optional<double> Spread(std::vector<double> values) {
  if (values.size() < 3) return std::nullopt;
  std::sort(values.begin(), values.end());
  const auto quantile = [&](double share) {
    const double at = share * static_cast<double>(values.size() - 1);
    const size_t below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
  };
  const double median = quantile(0.5);
  if (median <= 0) return std::nullopt;
  return (quantile(0.75) - quantile(0.25)) / 2 / median;
}

std::optional<double> Tflops(const Problem& problem, std::optional<double> time_ms) {
  if (!time_ms || *time_ms <= 0) return std::nullopt;
  return 2.0 * problem.m() * problem.n() * problem.k() / (*time_ms * 1e9);
}

std::vector<double> AfterWarmUp(std::vector<double> runs) {
  if (runs.size() > 1) runs.erase(runs.begin());
  return runs;
}

void SerialRuns::Add(const v1::Job& job, const Mesh& mesh) {
  const std::vector<double> runs = SlowestRankMs(job, mesh);
  unfused_ms.insert(unfused_ms.end(), runs.begin(), runs.end());
  const v1::JobFigures& parts = job.figures();
  if (parts.gemm_us() > 0) gemm_ms.push_back(parts.gemm_us() / 1000);
  if (parts.gather_us() > 0) gather_ms.push_back(parts.gather_us() / 1000);
}

Comparison Compare(std::optional<double> fused_ms, std::optional<double> unfused_ms,
                   SerialParts parts) {
  Comparison result{fused_ms, unfused_ms, parts.gemm_ms, parts.gather_ms};
  if (parts.gemm_ms && parts.gather_ms)
    result.lower_bound_ms = std::max(*parts.gemm_ms, *parts.gather_ms);
  if (!fused_ms || *fused_ms <= 0) return result;
  if (result.lower_bound_ms) result.ratio = *result.lower_bound_ms / *fused_ms;
  if (!unfused_ms) return result;
  result.speedup = *unfused_ms / *fused_ms;
  if (parts.gemm_ms && *unfused_ms - *parts.gemm_ms > kLeastToHide * *parts.gemm_ms)
    result.efficiency = 1 - (*fused_ms - *parts.gemm_ms) / (*unfused_ms - *parts.gemm_ms);
  return result;
}

}  // namespace agmm
