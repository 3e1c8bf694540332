// The figures of the seeds that come from simulated schedules.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status.h"
#include "kernels/predict/seeds.h"
#include "kernels/predict/simulate.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

absl::StatusOr<Simulation> SimulateSpec(const std::string& spec, int devices, const Shape& shape,
                                        DType dtype, const PlanOptions& options,
                                        Platform platform) {
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, ParseMesh(absl::StrCat("x=", devices)));
  AGMM_ASSIGN_OR_RETURN(const Problem problem, ParseProblem(spec, mesh, shape, dtype));
  AGMM_ASSIGN_OR_RETURN(
      platform.topology,
      UniformTopology(devices, platform.machine.within.wiring == Wiring::kTorus ? devices : 1));
  if (platform.machine.within.wiring == Wiring::kTorus) {
    AGMM_ASSIGN_OR_RETURN(platform.torus, MakeTorus(mesh, platform.machine, {}));
  }
  AGMM_ASSIGN_OR_RETURN(const Schedule schedule, Plan(problem, platform.topology, options));
  return Simulate(problem, platform, schedule);
}

// The elements that cross the busiest direction of a link.
absl::StatusOr<double> LinkElementsOf(const std::string& spec, const std::string& algorithm,
                                      const Machine& ring) {
  const Shape shape = {kQuestion10Rows, kQuestion10Rows, 0};
  AGMM_ASSIGN_OR_RETURN(const Simulation simulation,
                        SimulateSpec(spec, kQuestion10Devices, shape, DType::kF32,
                                     {algorithm, 1, 1}, {ring, {}, {}}));
  int64_t busiest_ns = 0;
  for (const ResourceUse& use : simulation.resources)
    if (use.is_link) busiest_ns = std::max(busiest_ns, use.busy_ns);
  return static_cast<double>(busiest_ns) * ring.within.rates.one_way /
         static_cast<double>(SizeOf(DType::kF32));
}

}  // namespace

absl::StatusOr<SimulatedFigures> SimulateFigures(const SeedMachines& machines) {
  // A ring of links at a byte per ns counts bytes.
  Machine ring = machines.tpu_v5e;
  ring.within.rates = {1, 2, 0};
  ring.wrap_multiple = kQuestion10Devices;
  SimulatedFigures figures;
  const char* const gather = "A[M_x, K] -> B[M, K]";
  const char* const exchange = "A[M_x, K] -> B[M, K_x]";
  LinkElements& elements = figures.elements;
  AGMM_ASSIGN_OR_RETURN(elements.gather_one_way, LinkElementsOf(gather, "ring", ring));
  AGMM_ASSIGN_OR_RETURN(elements.all_to_all_one_way, LinkElementsOf(exchange, "ring", ring));
  AGMM_ASSIGN_OR_RETURN(elements.gather_both_ways,
                        LinkElementsOf(gather, "bidirectional_ring", ring));
  AGMM_ASSIGN_OR_RETURN(elements.all_to_all_both_ways,
                        LinkElementsOf(exchange, "bidirectional_ring", ring));
  for (size_t i = 0; i < figures.pallas_ring_us.size(); ++i) {
    const int devices = kPallasDevices[i];
    PlanOptions carried = {"ring", 1, 1, "N=x"};
    carried.carried = true;
    AGMM_ASSIGN_OR_RETURN(const Simulation simulation,
                          SimulateSpec("A[M_x, K] * B[K, N_x] -> C[M, N_x]", devices,
                                       {1024 * devices, 4096 * devices, 4096}, DType::kF16, carried,
                                       {machines.h100, {}, {}}));
    figures.pallas_ring_us[i] = static_cast<double>(simulation.time_ns) * 1e-3;
  }
  return figures;
}

}  // namespace agmm
