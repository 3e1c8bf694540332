// Reads what Print of kernels/schedule/text.h writes: Parse(Print(s)) == s. Product code plans its
// schedules and parses none; golden files, tests and fuzzers do.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// Errors: INVALID_ARGUMENT with line and column.
absl::StatusOr<Schedule> Parse(const Problem& problem, absl::string_view text);

}  // namespace agmm
