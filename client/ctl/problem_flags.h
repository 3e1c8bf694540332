// A problem and its ranks as flags, for verbs that need no daemon.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {

struct ProblemFlags {
  std::string spec = kDefaultSpec, shape, dtype = "bf16", mesh;
  std::optional<int> nodes, devices_per_node;
  PlanOptions options;
};

// Adds --shape, --mesh, --spec, --dtype, --nodes, --devices-per-node and those of AddPlanOptions.
// `all_devices`: the number of devices of a node if both counts are left out, for the help.
void AddProblemFlags(CLI::App* verb, const std::string& all_devices, ProblemFlags* flags);

// Errors: INVALID_ARGUMENT.
absl::StatusOr<Problem> ProblemOf(const ProblemFlags& flags);

// Returns the nodes of the ranks of `mesh`. Without --nodes, there are as many as the ranks need
// with --devices-per-node devices each, or else with `devices_per_node`.
absl::StatusOr<Topology> TopologyOf(const ProblemFlags& flags, const Mesh& mesh,
                                    int devices_per_node);

}  // namespace agmm
