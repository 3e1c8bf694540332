// The products that agmmctl bench runs. Pure.
#pragma once

#include <string>
#include <vector>

#include "kernels/schedule/spec.h"

namespace agmm {

struct BenchShape {
  std::string name;
  Shape shape;  // of the whole product, not of a rank
};

inline constexpr int kMaxScale = 1024;

// Layers of known models and products with few rows, as in decoding; unless `all`, four of them: a
// large product, a skewed one, one with few rows and one with odd sizes. Each dimension is divided
// by `scale` and rounded up. The last shape grows with the number of ranks.
std::vector<BenchShape> Suite(int ranks, int scale, bool all);

}  // namespace agmm
