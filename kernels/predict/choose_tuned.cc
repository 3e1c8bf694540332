#include "kernels/predict/choose_tuned.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/units.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/split.h"

namespace agmm {
namespace {

// Returns true if the plan's options keep all that is asked for.
bool Keeps(const Problem& problem, const PlanOptions& asked, const PlanOptions& tuned) {
  if (asked.algorithm != "auto" || asked.transfers_only) return false;
  if (asked.chunks > 0 && asked.chunks != tuned.chunks) return false;
  if (asked.k_chunks > 0 && asked.k_chunks != tuned.k_chunks) return false;
  if (asked.workspace_shards > 0 && asked.workspace_shards != tuned.workspace_shards) return false;
  if (asked.carried && !tuned.carried) return false;
  if (asked.partials != tuned.partials) return false;
  // Choose does not cut K either where a row of C has the same bits in any batch.
  const bool keeps_k = HasProduct(problem) && KeepsK(problem);
  if (keeps_k && asked.k_chunks == 0 && tuned.k_chunks > 1) return false;
  const absl::StatusOr<Split> split = ParseSplit(problem, tuned.split);
  if (!split.ok()) return false;
  if (asked.split.empty()) return !keeps_k || SummedAxes(problem, *split).empty();
  const absl::StatusOr<Split> own = ParseSplit(problem, asked.split);
  return own.ok() && *own == *split;
}

std::string Why(const Problem& problem, const Machine& machine, const PlanOptions& asked,
                const TuningTable::Match& match, const Choice& choice) {
  const TunedPlan& tuned = *match.plan;
  std::string near;
  if (!match.exact) {
    near = absl::StrFormat(" for M=%d N=%d", tuned.key.m, tuned.key.n);
    if (tuned.key.k > 0) absl::StrAppend(&near, " K=", tuned.key.k);
    absl::StrAppend(&near, ", the nearest shape");
  }
  std::string serial;
  if (tuned.serial_us > 0) serial = absl::StrCat(" (serial ", FormatMicros(tuned.serial_us), ")");
  return absl::StrCat("tuned", near, ": ", RecipeText(problem, choice.recipe, asked.split.empty()),
                      " took ", FormatMicros(tuned.time_us), " on ", tuned.date, serial,
                      "; predicted ", FormatMicros(static_cast<double>(choice.time_ns) * 1e-3),
                      "; ", LabelOf(machine));
}

}  // namespace

std::optional<Choice> ChooseTuned(const Problem& problem, const Platform& platform,
                                  const PlanOptions& asked, const TuningTable::Match& match,
                                  const ChooseLimits& limits) {
  if (match.plan == nullptr || !Keeps(problem, asked, match.plan->options)) return std::nullopt;
  absl::StatusOr<Choice> choice = Choose(problem, platform, match.plan->options, limits);
  if (!choice.ok() || OptionsOf(problem, choice->recipe) != match.plan->options)
    return std::nullopt;
  choice->why = Why(problem, platform.machine, asked, match, *choice);
  return *std::move(choice);
}

}  // namespace agmm
