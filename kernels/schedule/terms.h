// The terms that a partial sum contains, which Verify counts.
#pragma once

#include <string>
#include <vector>

#include "kernels/schedule/problem.h"

namespace agmm {

// A set of terms of one element, by index. Of the result of a product: the index along K. Of an
// input or of the result of a collective: the position along the axes along which the sum of the
// input is open.
class Terms {
 public:
  Terms() = default;
  explicit Terms(const Range& range) : ranges_(range.empty() ? 0 : 1, range) {}

  bool empty() const { return ranges_.empty(); }
  // Returns false and changes nothing if a term is in both sets.
  bool Add(const Terms& more);
  // "0:4+8:12".
  std::string ToString() const;
  bool operator==(const Terms&) const = default;

 private:
  std::vector<Range> ranges_;  // disjoint, ascending, and merged where they meet
};

// Returns the terms whose sum is an element of an operand: the result, or an input with an open
// sum.
Terms AllTerms(const Problem& problem, Operand operand);

}  // namespace agmm
