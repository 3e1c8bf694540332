// The shapes that agmmctl bench and tune run. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/cluster.pb.h"
#include "kernels/schedule/spec.h"

namespace agmm {

// Rounds of measurements: the default of --rounds, and its largest value.
inline constexpr int kRounds = 7, kMaxRounds = 1000;

struct BenchShape {
  std::string name;
  Shape shape;       // of the whole product, not of a rank
  std::string spec;  // empty: the one that the command is for
};

inline constexpr int kMaxScale = 1024;

// Layers of known models and products with few rows, as in decoding; unless `all`, four of them: a
// large product, a skewed one, one with few rows and one with odd sizes. Each dimension is divided
// by `scale` and rounded up. The last shape grows with the number of ranks.
std::vector<BenchShape> Suite(int ranks, int scale, bool all);
// Products of both forms whose K is cut: the sums are scattered over the ranks, or each rank gets
// all of them.
std::vector<BenchShape> SumSuite(int scale);
// Suite, and with `sums` also SumSuite, with names that say by what it is divided. `scale` 0: 8 in
// a world with CPU devices, else 1.
std::vector<BenchShape> SuiteOf(const v1::GetStatusResponse& status, int ranks, int scale, bool all,
                                bool sums = false);

// Parses "M=8192,N=4096,K=4096" and the like, by the dimensions of `spec`. Errors: those of
// ParseShape.
absl::StatusOr<std::vector<BenchShape>> ParseShapes(const std::vector<std::string>& texts,
                                                    const std::string& spec);

}  // namespace agmm
