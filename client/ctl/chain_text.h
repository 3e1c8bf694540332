// The longest chain of steps of a simulation as text. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/predict/simulate.h"

namespace agmm {

// The most lines of a chain.
inline constexpr size_t kChainLines = 20;

// A line of the chain: one part, or several that belong together.
struct ChainLine {
  int64_t begin_ns = 0, end_ns = 0;
  size_t parts = 0;
  std::string text;  // "rank 3 waits 41 us for rows 2048:4096 of A from rank 2"
};

// Returns the chain, in which
//   * steps in a row of one kind on one rank are one line, and
//   * waits in a row for one block, which goes from rank to rank, are one line.
std::vector<ChainLine> ChainLines(const Problem& problem, const Schedule& schedule,
                                  const std::vector<ChainPart>& chain);

// Returns a line for each of the first lines of the chain, with the time at which it begins, and a
// last line that counts the rest:
//
//        us
//         0  rank 2, 101 us: multiply A[0:512] x B
//       101  rank 3 waits 41 us for rows 2048:4096 of A from rank 2
//            ... 12 more
std::string ChainText(const std::vector<ChainLine>& lines);

}  // namespace agmm
