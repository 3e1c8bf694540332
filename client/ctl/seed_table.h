// The published figures of the field beside ours (agmmctl simulate --seeds).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/json.h"
#include "kernels/predict/seeds.h"

namespace agmm {

// Returns all rows, with the figures of simulated schedules, on the presets of the questions.
absl::StatusOr<std::vector<SeedRow>> AllSeedRows();

// A table a source, with the reasons for differences below the rows.
std::string SeedText(const std::vector<SeedRow>& rows);
// [{"source", "question", "unit", "seed", "ours", "agrees", "why"}]; "seed" is null if it is not
// given.
Json SeedJson(const std::vector<SeedRow>& rows);

}  // namespace agmm
