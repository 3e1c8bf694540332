// A table of tuned plans as flags.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/predict/tuning.h"

namespace agmm {

struct TuningFlags {
  std::string file, hardware;
};

// Adds --tuning and --hardware.
void AddTuningFlags(CLI::App* verb, TuningFlags* flags);

// The table that the daemons of a world consult, and the hardware of the ranks.
struct TunedPlans {
  TuningTable table;
  std::string hardware;
  std::vector<std::string> skipped;  // as in TuningText
};

// Returns the plans of --tuning, followed by the shipped ones; none without --tuning. Skips entries
// that are wrong, as daemons do. Errors: INVALID_ARGUMENT for plans of several kinds of hardware
// without --hardware, and for a --hardware that no plan has, with the first entry that was skipped;
// those of reading the file.
absl::StatusOr<std::optional<TunedPlans>> TunedPlansOf(const TuningFlags& flags);

}  // namespace agmm
