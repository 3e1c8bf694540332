// The terms of a sum that Verify counts: which of them a partial sum has.
#pragma once

#include <string>
#include <vector>

#include "kernels/schedule/problem.h"

namespace agmm::verify {

// A set of terms of one element of the result, by their index in its term space: K of a product.
class Terms {
 public:
  Terms() = default;
  explicit Terms(const Range& range) : ranges_(range.empty() ? 0 : 1, range) {}

  bool empty() const { return ranges_.empty(); }
  // Returns false, and changes nothing, if both have one of the terms.
  bool Add(const Terms& more);
  // "0:4+8:12".
  std::string ToString() const;
  bool operator==(const Terms&) const = default;

 private:
  std::vector<Range> ranges_;  // disjoint, ascending, and merged where they meet
};

// The terms of which each element of the product is the sum.
Terms AllTerms(const Problem& problem);

}  // namespace agmm::verify
