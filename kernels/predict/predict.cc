#include "kernels/predict/predict.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/predict/network.h"
#include "kernels/predict/step_usage.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

// E is the quotient of two differences, and means nothing where they are small.
constexpr double kLeastDifference = 0.05;

absl::StatusOr<int64_t> TimeOf(const Problem& problem, const Platform& platform,
                               const PlanOptions& options) {
  AGMM_ASSIGN_OR_RETURN(const ResolvedOptions resolved,
                        ResolveOptions(problem, platform.topology, options));
  const int64_t steps = CostOf(problem, platform.topology, resolved.recipe).steps;
  if (steps > kMaxPlanSteps) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s has %d steps, more than %d", options.algorithm, steps, kMaxPlanSteps));
  }
  AGMM_ASSIGN_OR_RETURN(const Schedule schedule,
                        PlanWith(problem, platform.topology, resolved.recipe));
  AGMM_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(problem, platform, schedule));
  return simulation.time_ns;
}

}  // namespace

int64_t GemmNsOf(const Problem& problem, const Platform& platform, const Split& split) {
  if (!HasProduct(problem)) return 0;
  const DeviceRates device = RatesWithin(platform.machine.device, ResidentBytes(problem));
  const Product& product = TheProduct(problem);
  double most = 0;
  for (const LocalProduct& part : WorkOf(problem, split).parts) {
    if (part.empty()) continue;
    double bytes = 0;
    for (const Operand operand : {product.a, product.b, product.c}) {
      const Block block = BlockOf(problem, operand, part);
      bytes += static_cast<double>(block.rows.size()) * static_cast<double>(block.cols.size()) *
               static_cast<double>(SizeOf(problem.tensors[operand].dtype));
    }
    const double flops = 2.0 * static_cast<double>(part.m.size()) *
                         static_cast<double>(part.n.size()) * static_cast<double>(part.k.size());
    const double cores = ProductNs(device, problem.tensors[product.a].dtype, flops, bytes);
    most = std::max({most, cores, bytes / device.memory});
  }
  return static_cast<int64_t>(most);
}

absl::StatusOr<References> ReferencesOf(const Problem& problem, const Platform& platform,
                                        const Split& split) {
  References references;
  references.gemm_ns = GemmNsOf(problem, platform, split);
  PlanOptions options;
  options.split = HasProduct(problem) ? SplitText(problem, split) : "";
  options.algorithm = "serial";
  options.chunks = options.k_chunks = 1;
  const absl::StatusOr<int64_t> unfused = TimeOf(problem, platform, options);
  if (!unfused.ok() && !absl::IsResourceExhausted(unfused.status())) return unfused.status();
  references.unfused_ns = unfused.value_or(0);
  references.complete = unfused.ok();
  for (const Algorithm& algorithm : Algorithms()) {
    options.algorithm = algorithm.name;
    options.transfers_only = HasProduct(problem);
    const absl::StatusOr<int64_t> time = TimeOf(problem, platform, options);
    if (!time.ok()) continue;  // this algorithm refuses the problem, or has too many steps
    if (references.comm_ns == 0 || *time < references.comm_ns) references.comm_ns = *time;
  }
  return references;
}

Prediction PredictionOf(const Simulation& simulation, const References& references) {
  Prediction prediction;
  prediction.time_ns = simulation.time_ns;
  prediction.references = references;
  const auto time = static_cast<double>(simulation.time_ns);
  const auto gemm = static_cast<double>(references.gemm_ns),
             comm = static_cast<double>(references.comm_ns),
             unfused = static_cast<double>(references.unfused_ns);
  if (time > 0 && references.complete) {
    prediction.overlap = std::max(gemm, comm) / time;
    prediction.speedup = unfused / time;
  }
  if (unfused - gemm > kLeastDifference * gemm)
    prediction.efficiency = 1 - (time - gemm) / (unfused - gemm);
  if (!simulation.resources.empty() && time > 0) {
    const ResourceUse& busiest = simulation.resources.front();
    prediction.limit = absl::StrFormat("%s: busy %.0f %%", busiest.name,
                                       100 * static_cast<double>(busiest.busy_ns) / time);
  }
  return prediction;
}

}  // namespace agmm
