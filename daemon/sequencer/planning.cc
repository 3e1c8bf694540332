#include "daemon/sequencer/planning.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "kernels/base/hash.h"
#include "kernels/base/memory.h"
#include "kernels/base/status.h"
#include "kernels/predict/choose.h"
#include "kernels/predict/choose_tuned.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/verify.h"

namespace agmm {
namespace {

// Planning and proving more steps than this takes longer than some hundredths of a second.
constexpr int64_t kLargeSteps = 1500;

// Several times what the largest choices take, because a choice that ends by the clock is not
// reproducible.
constexpr absl::Duration kLongestChoice = absl::Seconds(10);

// Checks that the schedule will be small enough to be proved here.
absl::Status CheckSize(const JobSpec& job, const Recipe& recipe, int64_t steps) {
  if (steps <= kMaxPlanSteps) return absl::OkStatus();
  const std::string asked = absl::StrFormat(
      "the plan would have about %d steps in %d chunks a shard, %d along K; at "
      "most %d can be planned",
      steps, recipe.chunks, recipe.k_chunks, kMaxPlanSteps);
  const Recipe fewer =
      HalvePieces(job.problem, job.topology, recipe, {&Recipe::chunks, &Recipe::k_chunks});
  const bool fits = CostOf(job.problem, job.topology, fewer).steps <= kMaxPlanSteps;
  return absl::InvalidArgumentError(
      fits ? absl::StrFormat("%s; ask for %d chunks and %d along K", asked, fewer.chunks,
                             fewer.k_chunks)
           : absl::StrCat(asked, "; gather along a smaller axis, or use a smaller mesh"));
}

// Chooses a tuned plan, or by prediction.
absl::Status ChooseOptions(const JobSpec& job, Planned& planned) {
  const auto begin = std::chrono::steady_clock::now();
  ChooseLimits limits;
  if (job.heap_bytes > 0) limits.workspace_bytes = job.heap_bytes;
  limits.out_of_time = [&] {
    return absl::FromChrono(std::chrono::steady_clock::now() - begin) > kLongestChoice;
  };
  const Platform platform = {*job.machine, job.topology, {}};
  std::optional<Choice> tuned = ChooseTuned(job.problem, platform, job.options, job.tuned, limits);
  absl::StatusOr<Choice> choice =
      tuned ? *std::move(tuned) : Choose(job.problem, platform, job.options, limits);
  if (choice.ok()) {
    planned.resolved = {std::move(choice->recipe), std::move(choice->why)};
    planned.predicted_us = static_cast<double>(choice->time_ns) * 1e-3;
    return absl::OkStatus();
  }
  if (!absl::IsResourceExhausted(choice.status())) return choice.status();
  // CheckSize says what would fit.
  AGMM_ASSIGN_OR_RETURN(planned.resolved, ResolveOptions(job.problem, job.topology, job.options));
  return absl::OkStatus();
}

absl::Status Begin(const JobSpec& job, Planned& planned) {
  if (job.machine != nullptr) {
    AGMM_RETURN_IF_ERROR(ChooseOptions(job, planned));
  } else {
    AGMM_ASSIGN_OR_RETURN(planned.resolved, ResolveOptions(job.problem, job.topology, job.options));
  }
  const Recipe& recipe = planned.resolved.recipe;
  planned.options = OptionsOf(job.problem, recipe);
  const int64_t steps = CostOf(job.problem, job.topology, recipe).steps;
  planned.large = steps > kLargeSteps;
  return CheckSize(job, recipe, steps);
}

absl::Status Finish(const JobSpec& job, Planned& planned) {
  const Recipe& recipe = planned.resolved.recipe;
  // Transfers alone do not produce C, so they are proved with their multiplies.
  Recipe whole = recipe;
  whole.transfers_only = false;
  AGMM_ASSIGN_OR_RETURN(Schedule schedule, PlanWith(job.problem, job.topology, whole));
  if (const int64_t steps = StepCount(schedule); steps > kMaxPlanSteps) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the plan has %d steps, and at most %d can be planned; ask for fewer "
                        "pieces, gather along a smaller axis, or use a smaller mesh",
                        steps, kMaxPlanSteps));
  }
  if (absl::Status proof = Verify(job.problem, job.topology, schedule); !proof.ok()) {
    return absl::InternalError(absl::StrFormat(
        "the %s schedule of %s failed its proof and will not run: %s; choose another algorithm "
        "and report this as a bug",
        recipe.algorithm->name, ToString(job.problem), proof.message()));
  }
  if (recipe.transfers_only) schedule = TransfersOf(std::move(schedule));
  planned.hash = HashHex(PlanHash(job.problem, schedule));
  planned.schedule = schedule.algorithm;
  planned.workspace_bytes = schedule.workspace_bytes;
  planned.facts = FactsOf(job.problem, job.topology, schedule);
  return absl::OkStatus();
}

std::string NameOf(const JobSpec& job) {
  return absl::StrCat("the plan and proof of ", ToString(job.problem));
}

}  // namespace

bool ChoosesLong(const JobSpec& job) {
  return job.machine != nullptr && job.problem.mesh.size() > kFewRanks;
}

Planned BeginPlan(const JobSpec& job) {
  Planned planned;
  planned.status = WithinMemory(NameOf(job), [&] { return Begin(job, planned); });
  return planned;
}

void FinishPlan(const JobSpec& job, Planned& planned) {
  planned.status = WithinMemory(NameOf(job), [&] { return Finish(job, planned); });
}

}  // namespace agmm
