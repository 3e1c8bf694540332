#include "client/ctl/simulation_json.h"

#include <algorithm>
#include <optional>

#include "client/ctl/plan_json.h"
#include "kernels/base/hash.h"

namespace agmm {
namespace {

Json ChainJson(const std::vector<ChainPart>& chain) {
  Json parts = Json::array();
  for (const ChainPart& part : chain) {
    parts.push_back({{"rank", part.rank},
                     {"step", part.step},
                     {"begin_ns", part.begin_ns},
                     {"end_ns", part.end_ns},
                     {"waits", part.waits},
                     {"text", part.text}});
  }
  return parts;
}

Json PlanOf(const SimulatedPlan& plan) {
  Json resources = Json::array();
  for (const ResourceUse& use : plan.simulation.resources) {
    resources.push_back({{"name", use.name}, {"busy_ns", use.busy_ns}, {"is_link", use.is_link}});
  }
  Json ranks = Json::array();
  for (size_t rank = 0; rank < plan.simulation.ranks.size(); ++rank) {
    const RankUse& use = plan.simulation.ranks[rank];
    ranks.push_back({{"rank", rank},
                     {"begin_ns", use.begin_ns},
                     {"end_ns", use.end_ns},
                     {"multiply_ns", use.multiply_ns}});
  }
  const Prediction& prediction = plan.prediction;
  const References& references = prediction.references;
  const auto if_complete = [&](const auto& value) {
    return references.complete ? Json(value) : Json(nullptr);
  };
  return {{"algorithm", plan.algorithm},
          {"options", OptionsJson(plan.options)},
          {"why", NullIfEmpty(plan.why)},
          {"refused_by_daemons", NullIfEmpty(plan.refused)},
          {"hash", HashHex(plan.hash)},
          {"steps", plan.steps},
          {"time_ns", prediction.time_ns},
          {"gemm_ns", references.gemm_ns},
          {"comm_ns", if_complete(references.comm_ns)},
          {"bound_ns", if_complete(std::max(references.gemm_ns, references.comm_ns))},
          {"unfused_ns", if_complete(references.unfused_ns)},
          {"overlap", if_complete(prediction.overlap)},
          {"efficiency", if_complete(prediction.efficiency)},
          {"speedup", if_complete(prediction.speedup)},
          {"limit", NullIfEmpty(prediction.limit)},
          {"resources", resources},
          {"ranks", ranks},
          {"chain", ChainJson(plan.simulation.chain)}};
}

Json TakenJson(const std::optional<SimulatedPlan>& taken) {
  if (!taken.has_value()) return nullptr;
  return {{"algorithm", taken->algorithm},
          {"options", OptionsJson(taken->options)},
          {"why", NullIfEmpty(taken->why)},
          {"hash", HashHex(taken->hash)},
          {"time_ns", taken->prediction.time_ns}};
}

Json TorusJson(const Torus& torus) {
  if (torus.axes.empty()) return nullptr;
  Json axes = Json::array();
  for (const TorusAxis& axis : torus.axes)
    axes.push_back({{"name", axis.name}, {"size", axis.size}, {"wraps", axis.wraps}});
  return {{"axes", axes}, {"coordinates", torus.coordinates}};
}

}  // namespace

Json SimulationJson(const Problem& problem, const Platform& platform, const SimulatedPlans& all) {
  Json plans = Json::array(), refused = Json::array();
  for (const SimulatedPlan& plan : all.plans) plans.push_back(PlanOf(plan));
  for (const RefusedPlan& one : all.refused)
    refused.push_back({{"algorithm", one.algorithm}, {"why", one.why}});
  const Machine& machine = platform.machine;
  return {{"schema", "agmm.simulation.v1"},
          {"machine", {{"name", machine.name}, {"version", machine.version}}},
          {"problem", ProblemJson(problem)},
          {"topology", {{"node_of_rank", platform.topology.node_of_rank}}},
          {"torus", TorusJson(platform.torus)},
          {"taken", TakenJson(all.taken)},
          {"plans", plans},
          {"refused", refused},
          {"tuning_skipped", all.tuning_skipped}};
}

}  // namespace agmm
