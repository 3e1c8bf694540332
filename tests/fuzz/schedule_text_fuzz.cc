// The text of a schedule for a fixed problem: a text that parses prints the same, and the verifier
// returns a result for it.
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/fuzz/fuzz.h"
#include "tests/schedule/text_parse.h"

namespace agmm::fuzz {
namespace {

constexpr size_t kMaxStepsProved = 64;

void Check(absl::string_view text) {
  static const Mesh& mesh = *new Mesh(ParseMesh("x=2").value());
  static const Problem& problem =
      *new Problem(ParseProblem(kDefaultSpec, mesh, {8, 4, 4}, DType::kF32).value());
  const absl::StatusOr<Schedule> schedule = Parse(problem, text);
  if (!schedule.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(schedule.status()), schedule.status().ToString());
    return;
  }
  const std::string printed = Print(problem, *schedule);
  const absl::StatusOr<Schedule> again = Parse(problem, printed);
  FUZZ_CHECK(again.ok(), again.status().ToString() + "\n" + printed);
  FUZZ_CHECK(*again == *schedule, printed);
  size_t steps = 0;
  for (const auto& rank : schedule->ranks) {
    steps += rank.size();
    for (const Step& step : rank) (void)Describe(problem, step);
  }
  if (steps > kMaxStepsProved) return;
  FUZZ_CHECK(PlanHash(problem, *schedule) == PlanHash(problem, *again), printed);
  for (int nodes : {1, 2}) {
    const absl::Status proof = Verify(problem, UniformTopology(2, nodes).value(), *schedule);
    FUZZ_CHECK(proof.ok() || absl::IsInvalidArgument(proof) || absl::IsFailedPrecondition(proof),
               proof.ToString());
  }
}

[[maybe_unused]] const bool kAdded = AddTarget("schedule_text", Check);

}  // namespace
}  // namespace agmm::fuzz
