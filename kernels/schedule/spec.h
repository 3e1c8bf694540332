// The notation: 'A[M_x, K] * B[K, N_x] -> C[M, N_x]' over a mesh 'x=8' or 'dp=2,tp=4', or, without
// a product, 'A[M_x, K] -> B[M, K]'. A subscript names the mesh axes over which a dimension is
// sharded, major first: M_xy, or M_dp. {U_x} after an operand leaves its sum over x open. A dtype
// after a colon comes last: C[M, N_x]:f32. Source, except for dtypes: "Sharded Matrices and How to
// Multiply Them" (How to Scale Your Model, chapter 3).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/problem.h"
#include "kernels/schedule/split.h"

namespace agmm {

inline constexpr char kDefaultSpec[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";
inline constexpr char kDefaultCollective[] = "A[M_x, K] -> B[M, K]";

// Parses "x=8" or "dp=2,tp=4"; `ranks` lists its world ranks (empty: 0, 1, 2, ...).
// Errors: INVALID_ARGUMENT naming the column, as below.
absl::StatusOr<Mesh> ParseMesh(absl::string_view text, std::vector<int> ranks = {});

// Parses "M=8192,N=4096,K=4096": the dimensions of `spec` by their names, in any order, each once.
absl::StatusOr<Shape> ParseShape(absl::string_view text, absl::string_view spec = kDefaultSpec);

// A spec over a mesh.
struct ParsedSpec {
  Problem problem;  // its tensors have no sizes yet (0 x 0), and those without a dtype are f32
  std::vector<std::optional<DType>> dtypes;  // by operand, where the spec gives one
};

// Parses a spec over `mesh`. Dimensions may have any names; in a product, the one that A and B
// share is K. Errors: INVALID_ARGUMENT with a message of three lines: the fault with its column
// (from 1), the text, and a caret under the column.
absl::StatusOr<ParsedSpec> ParseSpec(absl::string_view spec, const Mesh& mesh);

// Parses a spec whose tensors have the sizes of `shape`, and `dtype` where the spec gives none.
// Errors: those of ParseSpec and Validate.
absl::StatusOr<Problem> ParseProblem(absl::string_view spec, const Mesh& mesh, const Shape& shape,
                                     DType dtype);

// Cuts `subscript` into axis names of the mesh, long names first, with backtracking. Returns -1, or
// on failure the furthest position that no axis name fits.
int ResolveAxes(const Mesh& mesh, absl::string_view subscript, std::vector<int>* axes);

// True for letters and digits, a letter first, except the reserved name "workspace".
bool IsOperandName(absl::string_view name);

// Parses the sharding of one operand, "[K, N_x]" or "[K, N]{U_x}", of `rows` x `cols`.
absl::StatusOr<Tensor> ParseTensor(absl::string_view sharding, const Mesh& mesh, int64_t rows,
                                   int64_t cols, DType dtype);

// Parses the output of SplitText: "M=x,N=yz", with the names of the problem's dimensions, or
// "none".
absl::StatusOr<Split> ParseSplit(const Problem& problem, absl::string_view text);

}  // namespace agmm
