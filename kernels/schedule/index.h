// A problem as the planner sees it: operands by role, and the one table that says which of M, N and
// K the rows and the columns of an operand are.
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <variant>

#include "kernels/schedule/problem.h"

namespace agmm {

// The operands of a product in the notation's order.
inline constexpr Operand kA = 0, kB = 1, kC = 2;

// Returns true for a product, false for a collective. This and the functions below require a
// problem that Validate accepts.
inline bool HasProduct(const Problem& problem) {
  assert(problem.operations.size() == 1);
  return std::holds_alternative<Product>(problem.operations.front());
}
inline const Product& TheProduct(const Problem& problem) {
  return std::get<Product>(problem.operations.front());
}
inline const Collective& TheCollective(const Problem& problem) {
  return std::get<Collective>(problem.operations.front());
}
// The operand that is computed or moved.
inline Operand ResultOf(const Problem& problem) {
  return HasProduct(problem) ? TheProduct(problem).c : TheCollective(problem).to;
}
// The operand whose shards have the elements of an input, or of the result of a collective, before
// they travel.
inline Operand SourceOf(const Problem& problem, Operand operand) {
  return HasProduct(problem) ? operand : TheCollective(problem).from;
}
// Returns true if the shards of `buffer` hold elements of `operand`.
inline bool HoldsOperand(const Problem& problem, Operand buffer, Operand operand) {
  if (buffer == operand) return HasProduct(problem) || operand != TheCollective(problem).from;
  return !HasProduct(problem) && buffer == TheCollective(problem).from &&
         operand == TheCollective(problem).to;
}

struct Shape {
  int64_t m = 0, n = 0, k = 0;  // k is 0 in a collective
};
inline Shape ShapeOf(const Problem& problem) {
  const Tensor& result = problem.tensors[ResultOf(problem)];
  return {result.rows, result.cols,
          HasProduct(problem) ? problem.tensors[TheProduct(problem).a].cols : 0};
}

// The rows of the result, its columns, and the dimension that a product sums.
enum class Dim { kM, kN, kK };

struct Stored {
  Dim rows, cols;
};
inline Stored StoredAs(const Problem& problem, Operand operand) {
  if (!HasProduct(problem)) return {Dim::kM, Dim::kN};
  const Product& product = TheProduct(problem);
  if (operand == product.a) return {Dim::kM, Dim::kK};
  if (operand == product.b) return {Dim::kK, Dim::kN};
  assert(operand == product.c);
  return {Dim::kM, Dim::kN};
}

// Returns true if the rows or the columns of `operand` are `dim`.
inline bool HasDim(const Problem& problem, Operand operand, Dim dim) {
  const Stored stored = StoredAs(problem, operand);
  return stored.rows == dim || stored.cols == dim;
}

// Returns true if the rows of `operand` are `dim`, false if its columns are.
inline bool IsRows(const Problem& problem, Operand operand, Dim dim) {
  const Stored stored = StoredAs(problem, operand);
  assert(stored.rows == dim || stored.cols == dim);
  return stored.rows == dim;
}

// Returns pair.rows if the rows of `operand` are `dim`, else pair.cols. `pair` is a Block, a Grid,
// a Sharding, or anything else with `rows` and `cols`.
template <typename Pair>
auto& Along(const Problem& problem, Operand operand, Pair& pair, Dim dim) {
  return IsRows(problem, operand, dim) ? pair.rows : pair.cols;
}
template <typename Pair>
void Along(const Problem& problem, Operand operand, const Pair&& pair, Dim dim) = delete;

// The dimension that an input of a product shares with C: M or N. Of other operands: M.
inline Dim OuterDim(const Problem& problem, Operand operand) {
  const Stored stored = StoredAs(problem, operand);
  return stored.rows == Dim::kK ? stored.cols : stored.rows;
}

// A dimension, by the name that the tensors give it. A collective has no K.
struct Dimension {
  std::string name;
  int64_t size = 0;
};
inline Dimension DimensionOf(const Problem& problem, Dim dim) {
  const Operand operand = dim == Dim::kK ? TheProduct(problem).a : ResultOf(problem);
  const Tensor& tensor = problem.tensors[operand];
  return IsRows(problem, operand, dim) ? Dimension{tensor.row_dim, tensor.rows}
                                       : Dimension{tensor.col_dim, tensor.cols};
}

// A range of each dimension: a part of a product.
struct Ranges {
  Range m, n, k;

  const Range& Of(Dim dim) const { return dim == Dim::kM ? m : dim == Dim::kN ? n : k; }
  bool empty() const { return m.empty() || n.empty() || k.empty(); }
  bool operator==(const Ranges&) const = default;
};

// The block of an operand that has these ranges.
inline Block BlockOf(const Problem& problem, Operand operand, const Ranges& ranges) {
  const Stored stored = StoredAs(problem, operand);
  return {operand, ranges.Of(stored.rows), ranges.Of(stored.cols)};
}

}  // namespace agmm
