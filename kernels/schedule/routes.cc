#include "kernels/schedule/routes.h"

#include <algorithm>
#include <utility>

namespace agmm {

std::vector<Hop> Reversed(std::vector<Hop> hops) {
  if (hops.empty()) return hops;
  const auto [first, last] = std::minmax_element(
      hops.begin(), hops.end(), [](const Hop& x, const Hop& y) { return x.step < y.step; });
  const int sum = first->step + last->step;
  std::reverse(hops.begin(), hops.end());
  for (Hop& hop : hops) {
    std::swap(hop.from, hop.to);
    hop.step = sum - hop.step;
  }
  return hops;
}

}  // namespace agmm
