// The one table that says which of M, N and K the rows and the columns of an operand are.
#pragma once

#include <cassert>

#include "kernels/schedule/problem.h"

namespace agmm {

// The dimensions of a product: the rows of C, the columns of C, and the one that is summed.
enum class Dim { kM, kN, kK };

struct Stored {
  Dim rows, cols;
};
inline Stored StoredAs(const Problem& problem, Operand operand) {
  const Roles& product = problem.product;
  if (operand == product.a) return {Dim::kM, Dim::kK};
  if (operand == product.b) return {Dim::kK, Dim::kN};
  return {Dim::kM, Dim::kN};
}

// Returns true if the rows or the columns of `operand` are those of `dim`.
inline bool HasDim(const Problem& problem, Operand operand, Dim dim) {
  const Stored stored = StoredAs(problem, operand);
  return stored.rows == dim || stored.cols == dim;
}

// Returns true if `dim` is that of the rows of `operand`, false if it is that of its columns.
inline bool IsRows(const Problem& problem, Operand operand, Dim dim) {
  const Stored stored = StoredAs(problem, operand);
  assert(stored.rows == dim || stored.cols == dim);
  return stored.rows == dim;
}

// Returns pair.rows if `dim` is that of the rows of `operand`, and pair.cols otherwise. `pair` is a
// Block, a Grid, Chunks, a Sharding, or anything else with `rows` and `cols`.
template <typename Pair>
auto& Along(const Problem& problem, Operand operand, Pair& pair, Dim dim) {
  return IsRows(problem, operand, dim) ? pair.rows : pair.cols;
}
template <typename Pair>
void Along(const Problem& problem, Operand operand, const Pair&& pair, Dim dim) = delete;

// The dimension that an input shares with C: M or N. Of C itself: M.
inline Dim OuterDim(const Problem& problem, Operand operand) {
  const Stored stored = StoredAs(problem, operand);
  return stored.rows == Dim::kK ? stored.cols : stored.rows;
}

// A range of each dimension: a part of a product.
struct Ranges {
  Range m, n, k;

  const Range& Of(Dim dim) const { return dim == Dim::kM ? m : dim == Dim::kN ? n : k; }
  bool empty() const { return m.empty() || n.empty() || k.empty(); }
};

// The block of an operand that has these ranges.
inline Block BlockOf(const Problem& problem, Operand operand, const Ranges& ranges) {
  const Stored stored = StoredAs(problem, operand);
  return {operand, ranges.Of(stored.rows), ranges.Of(stored.cols)};
}

}  // namespace agmm
