#include "client/ctl/tuning_flags.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/text_file.h"
#include "kernels/base/status.h"
#include "proto/convert/tuning_text.h"

namespace agmm {
namespace {

std::vector<TunedPlan> PlansOf(const TuningText& text) {
  std::vector<TunedPlan> plans;
  for (const TuningText::Entry& entry : text.entries) plans.push_back(entry.plan);
  return plans;
}

using Kinds = std::vector<std::string>;

void AddKinds(const std::vector<TunedPlan>& plans, Kinds* kinds) {
  for (const TunedPlan& plan : plans)
    if (!absl::c_linear_search(*kinds, plan.key.hardware)) kinds->push_back(plan.key.hardware);
}

std::string Quoted(const Kinds& kinds) {
  return absl::StrCat("'", absl::StrJoin(kinds, "', '"), "'");
}

// `own`: the plans of the file.
absl::StatusOr<std::string> HardwareIn(const std::vector<TunedPlan>& own,
                                       const std::vector<TunedPlan>& shipped,
                                       const TuningFlags& flags) {
  Kinds kinds;
  AddKinds(own, &kinds);
  if (!flags.hardware.empty() || kinds.empty()) AddKinds(shipped, &kinds);
  if (flags.hardware.empty() && kinds.size() < 2) return kinds.empty() ? "" : kinds.front();
  if (absl::c_linear_search(kinds, flags.hardware)) return flags.hardware;
  if (flags.hardware.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has plans for %d kinds of hardware; name one with --hardware: %s",
                        own.empty() ? "the program" : flags.file, kinds.size(), Quoted(kinds)));
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "neither %s nor the shipped tables have a plan for --hardware '%s'; they have plans for %s",
      flags.file, flags.hardware, kinds.empty() ? "none" : Quoted(kinds)));
}

// A wrong entry may be the reason that its hardware is unknown.
absl::Status WithSkipped(const absl::Status& error, const std::vector<std::string>& skipped) {
  if (skipped.empty()) return error;
  const std::string more =
      skipped.size() > 1 ? absl::StrFormat(" (and %d more)", skipped.size() - 1) : "";
  return WithMessage(
      error, absl::StrCat(error.message(), "; a tuned plan is not used: ", skipped.front(), more));
}

}  // namespace

void AddTuningFlags(CLI::App* verb, TuningFlags* flags) {
  CLI::Option* table = verb->add_option(
      "--tuning", flags->file,
      "A file with tuned plans, as tune --save writes it: the daemons that keep them take these "
      "before any prediction");
  verb->add_option("--hardware", flags->hardware,
                   "The hardware of the ranks, as the table names it (default: that of all plans "
                   "of the table, or of the shipped ones if it has none)")
      ->needs(table);
}

absl::StatusOr<std::optional<TunedPlans>> TunedPlansOf(const TuningFlags& flags) {
  if (flags.file.empty()) return std::nullopt;
  AGMM_ASSIGN_OR_RETURN(const std::string bytes,
                        ReadTextFile(flags.file, kMaxTuningBytes, "--tuning"));
  TuningText text = ReadTuning(bytes, flags.file);
  std::vector<TunedPlan> plans = PlansOf(text);
  const std::vector<TunedPlan> shipped = PlansOf(ShippedTuning());
  absl::StatusOr<std::string> hardware = HardwareIn(plans, shipped, flags);
  if (!hardware.ok()) return WithSkipped(hardware.status(), text.skipped);
  plans.insert(plans.end(), shipped.begin(), shipped.end());
  return TunedPlans{TuningTable(std::move(plans)), *std::move(hardware), std::move(text.skipped)};
}

}  // namespace agmm
