#include "kernels/schedule/terms.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/schedule/index.h"

namespace agmm {

bool Terms::Add(const Terms& more) {
  std::vector<Range> all = ranges_, merged;
  all.insert(all.end(), more.ranges_.begin(), more.ranges_.end());
  std::sort(all.begin(), all.end(), [](Range a, Range b) { return a.begin < b.begin; });
  for (const Range& range : all) {
    if (!merged.empty() && range.begin < merged.back().end) return false;
    if (!merged.empty() && range.begin == merged.back().end) {
      merged.back().end = range.end;
    } else {
      merged.push_back(range);
    }
  }
  ranges_ = std::move(merged);
  return true;
}

std::string Terms::ToString() const {
  return absl::StrJoin(ranges_, "+", [](std::string* out, const Range& range) {
    absl::StrAppend(out, range.begin, ":", range.end);
  });
}

Terms AllTerms(const Problem& problem, Operand operand) {
  if (HasProduct(problem) && problem.Writes(operand)) return Terms({0, ShapeOf(problem).k});
  return Terms({0, OpenParts(problem.mesh, problem.tensors[SourceOf(problem, operand)])});
}

}  // namespace agmm
