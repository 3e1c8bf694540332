// The products that agmmctl bench measures. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/spec.h"

namespace agmm {

struct BenchShape {
  std::string name;
  Shape shape;  // of the whole
};

inline constexpr int kMaxScale = 1024;

// The layers of known models and rows of decoding, each dimension divided by `scale` and rounded
// up. The last is a size a rank.
std::vector<BenchShape> Suite(int ranks, int scale);
// Four of them: a large product, a skewed one, one of few rows, one of ragged ones.
std::vector<BenchShape> SmallSuite(int ranks, int scale);

// "M=8192,N=4096,K=4096", called so. Errors: INVALID_ARGUMENT.
absl::StatusOr<BenchShape> ParseBenchShape(const std::string& text);

}  // namespace agmm
