#include "daemon/sequencer/hardware.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace agmm {

std::string HardwareOf(const std::vector<int>& ranks, const std::vector<WorldRank>& world) {
  std::vector<absl::string_view> kinds;
  std::vector<int> islands;
  for (const int rank : ranks) {
    const WorldRank& one = world[rank];
    islands.push_back(one.island);
    for (const absl::string_view kind : {absl::string_view(one.processor), {one.device}})
      if (!kind.empty() && !absl::c_linear_search(kinds, kind)) kinds.push_back(kind);
  }
  std::string text = absl::StrJoin(kinds, "; ");
  if (absl::c_any_of(islands, [](int island) { return island != 0; }))
    absl::StrAppend(&text, "; islands ", absl::StrJoin(islands, ","));
  return text;
}

}  // namespace agmm
