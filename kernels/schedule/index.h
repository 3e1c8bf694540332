// How operands are stored: the one table that says which of M, N and K the rows and the columns of
// an operand are.
#pragma once

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

// True if a dimension of `operand` is that of its rows, false if it is that of its columns.
inline bool IsRows(const Problem& problem, Operand operand, Dim dim) {
  return StoredAs(problem, operand).rows == dim;
}

// Of what an operand has for its rows and for its columns, what it has for `dim`. `pair` is a
// Block, a Grid, Chunks, a Sharding, or whatever else has `rows` and `cols`.
template <typename Pair>
auto& Along(const Problem& problem, Operand operand, Pair& pair, Dim dim) {
  return IsRows(problem, operand, dim) ? pair.rows : pair.cols;
}

// The dimension that an input shares with C: M or N.
inline Dim OuterDim(const Problem& problem, Operand input) {
  const Stored stored = StoredAs(problem, input);
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
