#include "client/ctl/matmul_figures.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/trace/ran_plan.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// The smallest share of T_gemm that must be hideable for E to be reported.
constexpr double kMinToHide = 0.05;
// See BusySign.
constexpr double kMaxSpread = 0.25, kMinSpreadMs = 1;
// See SampledError.
constexpr int64_t kRows = 16, kWindows = 8, kWindowCols = 8;

// Returns up to `count` numbers from 0 to `last`, evenly spread, each once.
std::vector<int64_t> SpreadOver(int64_t last, int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(last * i / std::max<int64_t>(count - 1, 1));
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

absl::StatusOr<std::vector<float>> Read(const MatrixReader& file, int64_t row, int64_t col,
                                        int64_t count) {
  std::vector<char> raw(count * SizeOf(file.dtype()));
  AGMM_RETURN_IF_ERROR(file.ReadElements(row * file.cols() + col, count, raw.data()));
  std::vector<float> values(count);
  ConvertToF32(file.dtype(), raw.data(), values.data(), count);
  return values;
}

}  // namespace

std::vector<double> SlowestRankMs(const v1::Job& job, const Mesh& mesh) {
  std::vector<double> slowest;
  for (const v1::RankReport* report : ReportsByRank(job, mesh)) {
    if (report == nullptr) return {};
    if (slowest.empty()) slowest.resize(report->epoch_us_size(), 0);
    if (report->epoch_us_size() != static_cast<int>(slowest.size())) return {};
    for (int i = 0; i < report->epoch_us_size(); ++i)
      slowest[i] = std::max(slowest[i], report->epoch_us(i) / 1000);
  }
  return slowest;
}

std::optional<double> Quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

std::optional<double> SpreadOf(std::vector<double> values) {
  if (values.size() < 3) return std::nullopt;
  const double median = *Median(values);
  if (median <= 0) return std::nullopt;
  return (*Quantile(values, 0.75) - *Quantile(values, 0.25)) / 2 / median;
}

std::vector<double> AfterWarmUp(std::vector<double> runs) {
  if (runs.size() > 1) runs.erase(runs.begin());
  return runs;
}

void PartRuns::AddSerial(const v1::Job& job, const Mesh& mesh) {
  const std::vector<double> runs = SlowestRankMs(job, mesh);
  unfused_ms.insert(unfused_ms.end(), runs.begin(), runs.end());
  const v1::JobFigures& parts = job.figures();
  if (parts.gemm_us() > 0) gemm_ms.push_back(parts.gemm_us() / 1000);
  if (parts.gather_us() > 0) gather_ms.push_back(parts.gather_us() / 1000);
}

void PartRuns::AddTransfers(const v1::Job& job, const Mesh& mesh) {
  if (!job.options().transfers_only()) return;
  const std::vector<double> runs = SlowestRankMs(job, mesh);
  transfers_ms.insert(transfers_ms.end(), runs.begin(), runs.end());
}

std::optional<double> PartRuns::GatherMs() const {
  const std::optional<double> serial = Median(gather_ms), alone = Median(transfers_ms);
  return serial && alone ? std::min(*serial, *alone) : serial ? serial : alone;
}

PartRuns PartRuns::WithoutWarmUp() const {
  return {AfterWarmUp(unfused_ms), AfterWarmUp(gemm_ms), AfterWarmUp(gather_ms),
          AfterWarmUp(transfers_ms)};
}

bool HasTransfers(const v1::Job& job) { return job.schedule() == job.options().algorithm(); }

Comparison Compare(std::optional<double> fused_ms, std::optional<double> unfused_ms,
                   std::optional<double> gemm_ms, std::optional<double> gather_ms) {
  Comparison result{fused_ms, unfused_ms, gemm_ms, gather_ms};
  if (gemm_ms && gather_ms) result.lower_bound_ms = std::max(*gemm_ms, *gather_ms);
  if (!fused_ms || *fused_ms <= 0) return result;
  if (result.lower_bound_ms) result.ratio = *result.lower_bound_ms / *fused_ms;
  if (!unfused_ms) return result;
  result.speedup = *unfused_ms / *fused_ms;
  if (gemm_ms && *unfused_ms - *gemm_ms > kMinToHide * *gemm_ms)
    result.efficiency = 1 - (*fused_ms - *gemm_ms) / (*unfused_ms - *gemm_ms);
  return result;
}

std::optional<std::string> BusySign(const std::vector<double>& runs_ms, absl::string_view runs) {
  const std::optional<double> spread = SpreadOf(runs_ms);
  if (!spread || *spread <= kMaxSpread || *Median(runs_ms) < kMinSpreadMs) return std::nullopt;
  return absl::StrFormat("half of the %s differ by more than +-%.0f %%", runs, 100 * *spread);
}

std::string BusyNote(const std::string& sign) {
  return absl::StrCat("the machine is busy: ", sign,
                      "; measure again when nothing else runs on it\n");
}

Figures FiguresOf(const Problem& problem, const std::vector<double>& runs_ms,
                  const PartRuns& parts) {
  const std::optional<double> time_ms = Median(runs_ms);
  Figures figures;
  figures.comparison =
      Compare(time_ms, Median(parts.unfused_ms), Median(parts.gemm_ms), parts.GatherMs());
  figures.spread = SpreadOf(runs_ms);
  if (time_ms > 0) figures.tflops = FlopCount(problem) / (*time_ms * 1e9);
  figures.busy = BusySign(runs_ms, "runs");
  if (!figures.busy) figures.busy = BusySign(parts.unfused_ms, "runs of serial");
  return figures;
}

absl::StatusOr<SampleError> SampledError(const MatrixReader& a, const MatrixReader& b,
                                         const MatrixReader& c) {
  SampleError result;
  const std::vector<int64_t> rows = SpreadOver(c.rows() - 1, kRows);
  std::vector<std::vector<float>> a_rows;
  for (int64_t row : rows) {
    AGMM_ASSIGN_OR_RETURN(a_rows.emplace_back(), Read(a, row, 0, a.cols()));
  }
  const int64_t width = std::min(c.cols(), kWindowCols);
  double error = 0, norm = 0;
  for (int64_t col : SpreadOver(c.cols() - width, kWindows)) {
    std::vector<double> sums(rows.size() * width, 0);
    for (int64_t k = 0; k < b.rows(); ++k) {
      AGMM_ASSIGN_OR_RETURN(const std::vector<float> piece, Read(b, k, col, width));
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] += static_cast<double>(a_rows[i / width][k]) * piece[i % width];
    }
    for (size_t row = 0; row < rows.size(); ++row) {
      AGMM_ASSIGN_OR_RETURN(const std::vector<float> found, Read(c, rows[row], col, width));
      for (int64_t i = 0; i < width; ++i) {
        const double sum = sums[row * width + i];
        ++result.elements;
        if (!std::isfinite(found[i]) || !std::isfinite(sum)) {
          ++result.non_finite;
          continue;
        }
        error += (found[i] - sum) * (found[i] - sum);
        norm += sum * sum;
      }
    }
  }
  if (result.elements > result.non_finite)
    result.relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  return result;
}

}  // namespace agmm
