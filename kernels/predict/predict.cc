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

absl::StatusOr<Simulation> SimulatePlan(const Problem& problem, const Platform& platform,
                                        const Recipe& recipe) {
  const int64_t steps = CostOf(problem, platform.topology, recipe).steps;
  if (steps > kMaxPlanSteps) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s has %d steps, more than %d", recipe.algorithm->name, steps, kMaxPlanSteps));
  }
  AGMM_ASSIGN_OR_RETURN(const Schedule schedule, PlanWith(problem, platform.topology, recipe));
  return Simulate(problem, platform, schedule);
}

absl::StatusOr<Recipe> RecipeOf(const Problem& problem, const Platform& platform,
                                const PlanOptions& options) {
  AGMM_ASSIGN_OR_RETURN(const ResolvedOptions resolved,
                        ResolveOptions(problem, platform.topology, options));
  return resolved.recipe;
}

// Returns the work of the busiest link.
int64_t LinkNsOf(const Simulation& simulation) {
  int64_t busiest_ns = 0;
  for (const ResourceUse& use : simulation.resources)
    if (use.is_link) busiest_ns = std::max(busiest_ns, use.busy_ns);
  return busiest_ns;
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
    const DType dtype = problem.tensors[product.a].dtype;
    double cores = ProductNs(device, dtype, flops, bytes);
    // Pieces of it may be faster than the whole.
    for (const GemmRate& rate : device.gemm)
      if (rate.dtype == dtype && rate.flops < flops)
        cores = std::min(cores, device.multiply_ns + flops / rate.flops_per_ns);
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
  AGMM_ASSIGN_OR_RETURN(const Recipe serial, RecipeOf(problem, platform, options));
  const absl::StatusOr<Simulation> unfused = SimulatePlan(problem, platform, serial);
  if (!unfused.ok() && !absl::IsResourceExhausted(unfused.status())) return unfused.status();
  references.unfused_ns = unfused.ok() ? unfused->time_ns : 0;
  references.complete = unfused.ok();
  if (!references.complete) return references;  // counting the steps of each route takes seconds
  for (const Algorithm& algorithm : Algorithms()) {
    options.algorithm = algorithm.name;
    const absl::StatusOr<Recipe> recipe = RecipeOf(problem, platform, options);
    if (!recipe.ok()) continue;  // this algorithm refuses the problem
    const absl::StatusOr<int64_t> time = TransfersNsOf(problem, platform, *recipe);
    if (!time.ok()) continue;  // it has too many steps
    if (references.comm_ns == 0 || *time < references.comm_ns) references.comm_ns = *time;
  }
  return references;
}

absl::StatusOr<int64_t> TransfersNsOf(const Problem& problem, const Platform& platform,
                                      const Recipe& recipe) {
  Recipe transfers = recipe;
  transfers.transfers_only = HasProduct(problem);
  AGMM_ASSIGN_OR_RETURN(const Simulation alone, SimulatePlan(problem, platform, transfers));
  if (!transfers.transfers_only || recipe.algorithm->arrivals != Arrivals::kInPlace)
    return alone.time_ns;
  AGMM_ASSIGN_OR_RETURN(const Simulation whole, SimulatePlan(problem, platform, recipe));
  return std::max(alone.time_ns, LinkNsOf(whole));
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
