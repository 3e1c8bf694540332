#include "client/ctl/tensor_spec.h"

#include <iostream>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/tensor_report.h"
#include "client/ctl/to_json.h"
#include "client/ctl/world.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/problem.h"

namespace agmm {
namespace {
constexpr char kReplicated[] = "[M, N]";
}  // namespace

void AddSpecFlags(CLI::App* verb, SpecFlags* flags) {
  verb->add_option("--sharding", flags->sharding,
                   "Such as '[K, N_x]': the mesh axes each dimension is split over (default: "
                   "'[M, N]', a whole copy on every rank of the mesh)");
  verb->add_option("--mesh", flags->mesh,
                   "Axes over the ranks, such as x=4 or dp=2,tp=2 (default: x=<the ranks>)");
  verb->add_option("--ranks", flags->ranks,
                   "The world's ranks behind the mesh: 0-3 or 0,2,4 (default: the first ones; all "
                   "of them without --mesh)");
}

absl::StatusOr<v1::TensorSpec> MakeSpec(Connection* connection, const SpecFlags& flags,
                                        Dimensions shape, DType dtype) {
  int world_ranks = 0;
  if (flags.mesh.empty() && flags.ranks.empty()) {
    AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, ReadyWorld(connection));
    world_ranks = static_cast<int>(NodesOfWorld(status).size());
  }
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, MeshOfFlags(flags.mesh, flags.ranks, world_ranks));
  AGMM_ASSIGN_OR_RETURN(const Tensor tensor,
                        ParseTensor(flags.sharding.empty() ? kReplicated : flags.sharding, mesh,
                                    shape.rows, shape.cols, dtype));
  return ToProto(mesh, tensor);
}

absl::Status RefuseSpread(const SpecFlags& flags, const std::string& name) {
  for (const auto& [flag, value] :
       {std::pair("--sharding", &flags.sharding), std::pair("--mesh", &flags.mesh),
        std::pair("--ranks", &flags.ranks)}) {
    if (!value->empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s \"%s\" is for new tensors and %s is there; leave it out, or give a name", flag,
          *value, name));
    }
  }
  return absl::OkStatus();
}

void PrintTensor(const v1::Tensor& tensor, const Options& options) {
  if (options.json)
    std::cout << JsonLine(ToJson(tensor));
  else
    std::cout << TensorLine(tensor) << "\n";
}

}  // namespace agmm
