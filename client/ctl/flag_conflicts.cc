#include "client/ctl/flag_conflicts.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"

namespace agmm {

void FlagConflicts::Add(const CLI::Option* mode, const std::vector<const CLI::Option*>& flags) {
  for (const CLI::Option* flag : flags) pairs_.emplace_back(mode, flag);
}

void FlagConflicts::AddAllBut(const std::vector<const CLI::Option*>& kept, const CLI::Option* mode,
                              const CLI::App* verb) {
  for (const CLI::Option* flag : verb->get_options())
    if (flag != mode && !absl::c_linear_search(kept, flag)) pairs_.emplace_back(mode, flag);
}

absl::Status FlagConflicts::Check() const {
  for (const auto& [mode, flag] : pairs_) {
    if (mode->count() == 0 || flag->count() == 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has no effect beside %s; leave out one of them", flag->get_name(), mode->get_name()));
  }
  return absl::OkStatus();
}

}  // namespace agmm
