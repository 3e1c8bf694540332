#include "tests/fuzz/product.h"

#include "kernels/schedule/index.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/fuzz/fuzz.h"
#include "tests/schedule/text_parse.h"

namespace agmm::fuzz {
namespace {

// Inputs are small, because proofs take time.
constexpr int kMaxRanksProved = 6;
constexpr int kMaxChunksProved = 3;

}  // namespace

void CheckProduct(absl::string_view spec, const Mesh& mesh, const Shape& shape,
                  const PlanOptions& options) {
  const absl::StatusOr<Problem> problem = ParseProblem(spec, mesh, shape, DType::kBF16);
  if (!problem.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(problem.status()), problem.status().ToString());
    return;
  }
  const std::string written = SpecText(*problem);
  const absl::StatusOr<Problem> again =
      ParseProblem(written, mesh, shape, problem->tensors[kA].dtype);
  FUZZ_CHECK(again.ok() && *again == *problem, written);
  if (mesh.size() > kMaxRanksProved || options.chunks > kMaxChunksProved) return;

  for (int nodes : {1, mesh.size()}) {
    const Topology topology = UniformTopology(mesh.size(), nodes).value();
    const absl::StatusOr<ResolvedOptions> resolved = ResolveOptions(*problem, topology, options);
    if (!resolved.ok()) return;
    const absl::StatusOr<Schedule> schedule = Plan(*problem, topology, options);
    if (!schedule.ok()) {
      FUZZ_CHECK(
          absl::IsUnimplemented(schedule.status()) || absl::IsInvalidArgument(schedule.status()),
          schedule.status().ToString());
      return;
    }
    const absl::Status proof = Verify(*problem, topology, *schedule);
    FUZZ_CHECK(proof.ok(), proof.ToString());
    const absl::StatusOr<Schedule> same = PlanWith(*problem, topology, resolved->recipe);
    FUZZ_CHECK(same.ok() && *same == *schedule,
               "the recipe plans another schedule than its options");
    const absl::StatusOr<Schedule> from_text =
        Plan(*problem, topology, OptionsOf(*problem, resolved->recipe));
    FUZZ_CHECK(from_text.ok() && *from_text == *schedule,
               "the text of a recipe plans another schedule");
    const std::string text = Print(*problem, *schedule);
    const absl::StatusOr<Schedule> parsed = Parse(*problem, text);
    FUZZ_CHECK(parsed.ok() && *parsed == *schedule, text);
  }
}

}  // namespace agmm::fuzz
