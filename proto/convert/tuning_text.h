// Tables of tuned plans in protobuf's text format (proto/agmm/v1/tuning.proto), and the tables of
// deploy/tuning, which are part of the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/predict/tuning.h"

namespace agmm {

// The entries of a table's text.
struct TuningText {
  struct Entry {
    TunedPlan plan;
    size_t begin = 0, end = 0;  // bytes of the text
  };
  std::vector<Entry> entries;
  // Entries that cannot be used, at most kMaxSkipped of them: "file:line:column: reason".
  std::vector<std::string> skipped;
  bool full = false;  // the text has more than kMaxTunedPlans
};
inline constexpr size_t kMaxSkipped = 64;
// The most bytes of a table's text. An answer with all plans must fit into a message.
inline constexpr int64_t kMaxTuningBytes = int64_t{3} << 20;

// Reads `text`, the contents of `file`. An entry that is wrong does not affect the others, even if
// it is torn: each begins with `plans {`. No more than kMaxTunedPlans are read.
TuningText ReadTuning(absl::string_view text, const std::string& file);

// Returns `text`, the contents of `file`, with `plans` added. Each replaces the entries that would
// apply in its place. All other text is kept, whatever it is. Errors: RESOURCE_EXHAUSTED for more
// than kMaxTunedPlans.
absl::StatusOr<std::string> AddTuning(absl::string_view text, const std::string& file,
                                      const std::vector<TunedPlan>& plans);

// The plans of all shipped tables. Errors in them are those of a build, and a test finds them.
const TuningText& ShippedTuning();

}  // namespace agmm
