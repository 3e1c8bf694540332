#include "client/ctl/problem_flags.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/arguments.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {

void AddProblemFlags(CLI::App* verb, const std::string& all_devices, ProblemFlags* flags) {
  verb->add_option("--shape", flags->shape,
                   "Sizes of the spec's dimensions, such as M=8192,N=4096,K=4096")
      ->required();
  verb->add_option("--mesh", flags->mesh, "Axes and their sizes, such as x=8 or dp=2,tp=4")
      ->required();
  verb->add_option("--spec", flags->spec, kAnySpecHelp)->capture_default_str();
  verb->add_option("--dtype", flags->dtype, kDTypeHelp)->capture_default_str();
  verb->add_option("--nodes", flags->nodes,
                   "Number of nodes that the ranks are on, in order (default: as many as the ranks "
                   "need)");
  verb->add_option("--devices-per-node", flags->devices_per_node,
                   absl::StrCat("Number of ranks of a node (default: ranks / nodes; without "
                                "--nodes, ",
                                all_devices, ")"));
  AddPlanOptions(verb, &flags->options);
}

absl::StatusOr<Problem> ProblemOf(const ProblemFlags& flags) {
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, ParseMesh(flags.mesh));
  AGMM_ASSIGN_OR_RETURN(const Shape shape, ParseShape(flags.shape, flags.spec));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, ParseDType(flags.dtype));
  return ParseProblem(flags.spec, mesh, shape, dtype);
}

absl::StatusOr<Topology> TopologyOf(const ProblemFlags& flags, const Mesh& mesh,
                                    int devices_per_node) {
  const int ranks = mesh.size();
  for (const auto& [flag, count] :
       {std::pair{"--nodes", flags.nodes}, {"--devices-per-node", flags.devices_per_node}}) {
    if (!count || (*count >= 1 && *count <= kMaxRanks)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %d; it must be from 1 to %d", flag, *count, kMaxRanks));
  }
  if (flags.nodes || flags.devices_per_node) {
    const int given = flags.devices_per_node.value_or(0);
    const int needed = given > 0 ? static_cast<int>(CeilDiv(ranks, given)) : 1;
    return UniformTopology(ranks, flags.nodes.value_or(needed), given);
  }
  return UniformTopology(ranks, static_cast<int>(CeilDiv(ranks, devices_per_node)),
                         devices_per_node);
}

}  // namespace agmm
