#include "client/ctl/tuning_flags.h"

#include <cstdint>
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

absl::StatusOr<std::string> HardwareIn(const std::vector<TunedPlan>& plans,
                                       const TuningFlags& flags) {
  std::vector<std::string> kinds;
  for (const TunedPlan& plan : plans)
    if (!absl::c_linear_search(kinds, plan.key.hardware)) kinds.push_back(plan.key.hardware);
  if (flags.hardware.empty() && kinds.size() < 2) return kinds.empty() ? "" : kinds.front();
  if (absl::c_linear_search(kinds, flags.hardware)) return flags.hardware;
  const std::string named = absl::StrCat("'", absl::StrJoin(kinds, "', '"), "'");
  if (flags.hardware.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has plans for %d kinds of hardware; name one with --hardware: %s",
                        flags.file, kinds.size(), named));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has no plan for --hardware '%s'; it has plans for %s", flags.file,
                      flags.hardware, kinds.empty() ? "none" : named));
}

}  // namespace

void AddTuningFlags(CLI::App* verb, TuningFlags* flags) {
  CLI::Option* table = verb->add_option(
      "--tuning", flags->file,
      "A file with tuned plans, as tune --save writes it: the daemons that keep them take these "
      "before any prediction");
  verb->add_option("--hardware", flags->hardware,
                   "The hardware of the ranks, as the table names it (default: that of all plans "
                   "of the table)")
      ->needs(table);
}

absl::StatusOr<std::optional<TunedPlans>> TunedPlansOf(const TuningFlags& flags) {
  if (flags.file.empty()) return std::nullopt;
  AGMM_ASSIGN_OR_RETURN(const std::string bytes,
                        ReadTextFile(flags.file, kMaxTuningBytes, "--tuning"));
  const TuningText text = ReadTuning(bytes, flags.file);
  if (!text.skipped.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(text.skipped.front(), "; correct or remove the entry"));
  }
  std::vector<TunedPlan> plans;
  for (const TuningText::Entry& entry : text.entries) plans.push_back(entry.plan);
  AGMM_ASSIGN_OR_RETURN(std::string hardware, HardwareIn(plans, flags));
  for (const TuningText::Entry& entry : ShippedTuning().entries) plans.push_back(entry.plan);
  return TunedPlans{TuningTable(std::move(plans)), std::move(hardware)};
}

}  // namespace agmm
