#include "tests/schedule/shardings.h"

#include "absl/strings/str_format.h"

namespace agmm::test {

const std::vector<ShardedCase>& ShardedCases() {
  static const auto* const all = new std::vector<ShardedCase>{
      {"A[M, K] * B[K, N] -> C[M, N]", "x=3"},
      {"A[M_x, K] * B[K, N] -> C[M_x, N]", "x=3"},
      {"A[M, K] * B[K, N] -> C[M, N_x]", "x=4"},
      // Case 4: the flagship, and the other operand.
      {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=4"},
      {"A[M_x, K] * B[K, N_x] -> C[M_x, N]", "x=4"},
      {"A[M_x, K] * B[K, N_x] -> C[M, N]", "x=3"},
      // Along K.
      {"A[M, K_x] * B[K, N] -> C[M, N]", "x=4"},
      {"A[M, K_x] * B[K, N_x] -> C[M, N_x]", "x=4"},
      {"A[M, K] * B[K_x, N] -> C[M, N]", "x=4"},
      {"A[M, K] * B[K_x, N] -> C[M_x, N]", "x=3"},
      {"A[M_x, K] * B[K_x, N] -> C[M_x, N]", "x=4"},
      {"A[M, K_x] * B[K_x, N] -> C[M, N]", "x=3"},
      // C less sharded than its inputs, or otherwise.
      {"A[M_x, K] * B[K, N] -> C[M, N]", "x=4"},
      {"A[M, K] * B[K, N_x] -> C[M, N]", "x=3"},
      {"A[M_x, K] * B[K, N] -> C[M, N_x]", "x=4"},
      // Two axes.
      {"A[M_x, K] * B[K, N_y] -> C[M_x, N_y]", "x=2,y=2"},
      {"A[M_x, K_y] * B[K, N_y] -> C[M_x, N_y]", "x=2,y=3"},
      {"A[M_xy, K] * B[K, N] -> C[M_x, N]", "x=2,y=3"},
      {"A[M_xy, K] * B[K, N] -> C[M_y, N]", "x=2,y=3"},
      {"A[M_xy, K] * B[K, N_y] -> C[M_x, N_y]", "x=3,y=2"},
      {"A[M_xy, K] * B[K, N_y] -> C[M_y, N]", "x=2,y=2"},
      {"A[M_yx, K] * B[K, N_yx] -> C[M, N_yx]", "x=2,y=4"},
      {"A[M_x, K_y] * B[K_x, N_y] -> C[M_x, N_y]", "x=2,y=2"},
      {"A[M, K_xy] * B[K, N] -> C[M_y, N]", "x=2,y=2"},
      {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=3,y=2"},
      {"A[M_y, K_x] * B[K, N_y] -> C[M, N_y]", "x=2,y=2"},
      {"A[M_xy, K] * B[K, N] -> C[M_yx, N]", "x=2,y=3"},
      // Three axes.
      {"A[M_xz, K] * B[K, N_y] -> C[M_x, N_y]", "x=2,y=2,z=2"},
      {"A[M_x, K_y] * B[K, N_z] -> C[M, N_z]", "x=2,y=2,z=2"},
      {"A[M_xyz, K] * B[K, N_z] -> C[M_y, N_z]", "x=2,y=2,z=2"},
  };
  return *all;
}

std::vector<ShardedPlan> PlansOf(const Draw& draw, bool thorough) {
  const Mesh mesh = ParseMesh(draw.sharded.mesh).value();
  const Problem problem = ParseProblem(draw.sharded.spec, mesh, draw.shape, draw.dtype).value();
  const int devices = (mesh.size() + draw.nodes - 1) / draw.nodes;
  const Topology topology =
      UniformTopology(mesh.size(), (mesh.size() + devices - 1) / devices, devices).value();
  std::vector<ShardedPlan> plans;
  const auto add = [&](const PlanOptions& options) {
    plans.push_back({absl::StrFormat("%s over %s, M=%d N=%d K=%d, %d nodes, split %s, %s, chunks "
                                     "%d, along K %d, workspace %d%s",
                                     draw.sharded.spec, draw.sharded.mesh, draw.shape.m,
                                     draw.shape.n, draw.shape.k, draw.nodes, options.split,
                                     options.algorithm, options.chunks, options.k_chunks,
                                     options.workspace_shards, options.carried ? ", carried" : ""),
                     problem, topology, options});
  };
  for (const Split& split : Splits(problem)) {
    if (!CheckNoSum(problem, split).ok()) continue;
    for (const Algorithm& algorithm : Algorithms()) {
      PlanOptions options = {algorithm.name, 1, 1, SplitText(problem, split)};
      for (int chunks : {1, 3}) {
        for (int k_chunks : {1, 3}) {
          for (int shards : {0, 2}) {
            for (bool carried : {false, true}) {
              const int changed = (chunks > 1) + (k_chunks > 1) + (shards > 0) + carried;
              if (!thorough && changed > 1) continue;
              if (algorithm.arrivals != Arrivals::kPlaces && (shards > 0 || carried)) continue;
              options.chunks = chunks;
              options.k_chunks = k_chunks;
              options.workspace_shards = shards;
              options.carried = carried;
              const auto resolved = ResolveOptions(problem, topology, options);
              if (resolved.ok() && resolved->options == options) add(options);
            }
          }
        }
      }
    }
  }
  return plans;
}

}  // namespace agmm::test
