#include "tests/schedule/shardings.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace agmm::test {

namespace {

std::vector<ShardedCase> Products() {
  return {
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
      // C is less sharded than its inputs, or differently.
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
      {"A[M_xy, K] * B[K_xy, N] -> C[M, N_yx]", "x=2,y=4"},
      {"A[M_x, K] * B[K_y, N_x] -> C[M, N_yx]", "x=2,y=3"},
      // Three axes.
      {"A[M_xz, K] * B[K, N_y] -> C[M_x, N_y]", "x=2,y=2,z=2"},
      {"A[M_x, K_y] * B[K, N_z] -> C[M, N_z]", "x=2,y=2,z=2"},
      {"A[M_xyz, K] * B[K, N_z] -> C[M_y, N_z]", "x=2,y=2,z=2"},
      // The sum of an input is open.
      {"A[M, K]{U_x} * B[K, N] -> C[M_x, N]", "x=4"},
      {"A[M, K]{U_x} * B[K, N_x] -> C[M, N_x]", "x=3"},
      {"A[M_y, K]{U_x} * B[K, N_x] -> C[M, N_x]", "x=2,y=2"},
      {"A[M, K_y] * B[K_y, N]{U_x} -> C[M, N]", "x=2,y=2"},
      {"A[M, K]{U_x} * B[K, N]{U_y} -> C[M, N_y]{U_x}", "x=2,y=2"},
      // C leaves its sum open.
      {"A[M, K_x] * B[K_x, N] -> C[M, N]{U_x}", "x=3"},
      {"A[M, K] * B[K, N] -> C[M_y, N]{U_x}", "x=2,y=2"},
      {"A[M_y, K_x] * B[K_x, N] -> C[M, N_y]{U_x}", "x=2,y=2"},
      {"A[M, K_xy] * B[K_xy, N] -> C[M, N]{U_x}", "x=2,y=3"},
  };
}

std::vector<ShardedCase> Collectives() {
  return {
      // All-gather, reduce-scatter, all-reduce, all-to-all.
      {"A[M_x, K] -> B[M, K]", "x=4"},
      {"A[M, K_x] -> B[M, K]", "x=3"},
      {"A[M, K]{U_x} -> B[M_x, K]", "x=4"},
      {"A[M, K]{U_x} -> B[M, K_x]", "x=3"},
      {"A[M, K]{U_x} -> B[M, K]", "x=4"},
      {"A[M_x, K] -> B[M, K_x]", "x=4"},
      // Reshardings that move nothing between ranks.
      {"A[M, K] -> B[M_x, K]", "x=3"},
      {"A[M_x, K] -> B[M_x, K]", "x=3"},
      // Collectives over two axes.
      {"A[M_xy, K] -> B[M_yx, K]", "x=2,y=3"},
      {"A[M_x, K_y] -> B[M_y, K_x]", "x=2,y=2"},
      {"A[M_x, K]{U_y} -> B[M, K_y]", "x=2,y=3"},
      {"A[M, K]{U_xy} -> B[M, K]", "x=2,y=3"},
      {"A[M, K]{U_x}:bf16 -> B[M_x, K]:f32", "x=3"},
      {"A[M, K]{U_x}:f32 -> B[M, K_x]:bf16", "x=3"},
      {"A[M, K]{U_x} -> B[M, K]", "x=2,y=2"},
      {"A[M, K]{U_x} -> B[M_y, K]", "x=2,y=2"},
      {"A[M, K]{U_xy} -> B[M_x, K]", "x=2,y=2"},
      // The sum stays open, in part or in other shards.
      {"A[M, K]{U_xy} -> B[M_y, K]{U_x}", "x=2,y=2"},
      {"A[M_y, K]{U_x} -> B[M, K]{U_x}", "x=2,y=3"},
  };
}

}  // namespace

const std::vector<ShardedCase>& ShardedCases() {
  static const auto* const all = [] {
    auto* const cases = new std::vector<ShardedCase>(Products());
    for (const ShardedCase& one : Collectives()) cases->push_back(one);
    return cases;
  }();
  return *all;
}

namespace {

// A draw, ready to be planned with one set of options after the other.
class Drawn {
 public:
  explicit Drawn(const Draw& draw)
      : draw_(draw),
        problem_(ParseProblem(draw.sharded.spec, ParseMesh(draw.sharded.mesh).value(), draw.shape,
                              draw.dtype)
                     .value()) {
    const int ranks = problem_.mesh.size(), devices = (ranks + draw.nodes - 1) / draw.nodes;
    topology_ = UniformTopology(ranks, (ranks + devices - 1) / devices, devices).value();
    for (const Split& split : Splits(problem_)) {
      splits_.push_back(SplitText(problem_, split));
    }
  }

  const std::vector<std::string>& splits() const { return splits_; }

  // None where the options resolve to others.
  std::optional<ShardedPlan> PlanBy(const PlanOptions& options) const {
    const auto resolved = ResolveOptions(problem_, topology_, options);
    if (!resolved.ok() || OptionsOf(problem_, resolved->recipe) != options) return std::nullopt;
    return ShardedPlan{
        absl::StrFormat("%s over %s, M=%d N=%d K=%d, %d nodes, split %s, %s, chunks %d, along K "
                        "%d, workspace %d, partials %s%s",
                        draw_.sharded.spec, draw_.sharded.mesh, draw_.shape.m, draw_.shape.n,
                        draw_.shape.k, draw_.nodes, options.split, options.algorithm,
                        options.chunks, options.k_chunks, options.workspace_shards,
                        Name(options.partials), options.carried ? ", carried" : ""),
        problem_, topology_, options, resolved->recipe};
  }

 private:
  const Draw& draw_;
  const Problem problem_;
  Topology topology_;
  std::vector<std::string> splits_;
};

}  // namespace

std::vector<ShardedPlan> PlansOf(const Draw& draw, bool thorough) {
  const Drawn drawn(draw);
  std::vector<ShardedPlan> plans;
  for (const std::string& split : drawn.splits()) {
    for (const Algorithm& algorithm : Algorithms()) {
      for (int chunks : {1, 3}) {
        for (int k_chunks : {1, 3}) {
          for (int shards : {0, 2}) {
            for (bool carried : {false, true}) {
              const int changed = (chunks > 1) + (k_chunks > 1) + (shards > 0) + carried;
              if (!thorough && changed > 1) continue;
              if (algorithm.arrivals != Arrivals::kPlaces && (shards > 0 || carried)) continue;
              PlanOptions options = {algorithm.name, chunks, k_chunks, split, shards, carried};
              if (const auto plan = drawn.PlanBy(options)) plans.push_back(*plan);
              // Integers of tests are exact in f16.
              options.partials = DType::kF16;
              if (changed > (chunks > 1)) continue;
              if (const auto plan = drawn.PlanBy(options)) plans.push_back(*plan);
            }
          }
        }
      }
    }
  }
  return plans;
}

std::optional<ShardedPlan> DrawPlan(const Draw& draw, std::mt19937_64& random) {
  const Drawn drawn(draw);
  const auto one_of = [&](const auto& list) { return list[random() % list.size()]; };
  const std::vector<int> chunks = {1, 3}, shards = {0, 0, 2};
  for (int tries = 0; tries < 100; ++tries) {
    const PlanOptions options = {one_of(Algorithms()).name, one_of(chunks), one_of(chunks),
                                 one_of(drawn.splits()),    one_of(shards), random() % 4 == 0};
    if (auto plan = drawn.PlanBy(options)) return plan;
  }
  return std::nullopt;
}

int64_t CountWork(const Schedule& schedule) {
  int64_t count = 0;
  for (const std::vector<Step>& steps : schedule.ranks)
    for (const Step& step : steps) count += !std::holds_alternative<Join>(step.op);
  return count;
}

}  // namespace agmm::test
