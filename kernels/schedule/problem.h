// The problem to compute: a mesh, matrices sharded over it, and operations on them, but not how to
// compute them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "kernels/schedule/topology.h"

namespace agmm {

using Operand = int;  // index into Problem::tensors

// Rows of every resident tensor and of the workspace begin at multiples of this many bytes. The
// bytes between the end of a row and the next multiple are its padding.
inline constexpr int64_t kRowAlignBytes = 128;

// The most rows or columns of a tensor, so that the product of two dimensions and an element size
// stays far below 2^63.
inline constexpr int64_t kMaxDimension = int64_t{1} << 28;
// The most ranks of a mesh.
inline constexpr int kMaxRanks = 4096;

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const Range&) const = default;
};

// A rectangle of an operand, in the operand's global coordinates. In a collective, steps name all
// blocks after the result, because both operands have the same elements.
struct Block {
  Operand operand = 0;
  Range rows, cols;
  bool empty() const { return rows.empty() || cols.empty(); }
  bool operator==(const Block&) const = default;
};

// Returns the common elements; may be empty.
Range Intersect(const Range& a, const Range& b);
Block Intersect(const Block& a, const Block& b);

struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

// Named axes over a list of the world's ranks, row-major: the last axis varies fastest.
struct Mesh {
  std::vector<Axis> axes;
  std::vector<int> ranks;  // world ranks; ranks.size() is the product of the axis sizes

  int size() const { return static_cast<int>(ranks.size()); }
  // Returns the coordinate of mesh rank `rank` along axis `axis`.
  int Coordinate(Rank rank, int axis) const;
  // "x=4" or "dp=2,tp=4".
  std::string ToString() const;
  bool operator==(const Mesh&) const = default;
};

// The mesh axes over which each dimension is split, major axis first, as indices into Mesh::axes.
struct Sharding {
  std::vector<int> rows, cols;
  // Axes along which each rank holds a part of an open sum: {U_x}.
  std::vector<int> open;
  bool operator==(const Sharding&) const = default;
};

struct Tensor {
  std::string name;              // "A"
  std::string row_dim, col_dim;  // "M", "K": its dimensions in storage order
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
  Sharding sharding;
  bool operator==(const Tensor&) const = default;
};

// tensors[a] * tensors[b] -> tensors[c].
struct Product {
  Operand a = 0, b = 0, c = 0;
  bool operator==(const Product&) const = default;
};

// tensors[from] -> tensors[to]: the same matrix with another sharding. A sum that is open in `from`
// is closed along the axes along which `to` does not leave it open.
struct Collective {
  Operand from = 0, to = 0;
  bool operator==(const Collective&) const = default;
};

using Operation = std::variant<Product, Collective>;

struct Problem {
  Mesh mesh;
  std::vector<Tensor> tensors;
  std::vector<Operation> operations;

  // True if an operation writes the operand.
  bool Writes(Operand operand) const;
  // Lists the operands that no operation writes, ascending.
  std::vector<Operand> Inputs() const;
  bool operator==(const Problem&) const = default;
};

// "xy": the names of axes, major first.
std::string AxesText(const Mesh& mesh, const std::vector<int>& axes);

// The position of a rank along combined axes, the first major, and the number of positions.
struct Position {
  int part = 0, parts = 1;
};
Position PositionAlong(const Mesh& mesh, const std::vector<int>& axes, Rank rank);

// Returns piece `part` of `parts` near-equal pieces of [0, total): sizes differ by at most one,
// with larger pieces first and empty ones (total < parts) last.
Range SplitRange(int64_t total, int parts, int part);

// Returns the product of the sizes of the axes.
int PartsAlong(const Mesh& mesh, const std::vector<int>& axes);
// Returns the number of parts that an element of the tensor is the sum of; 1 if its sum is closed.
inline int OpenParts(const Mesh& mesh, const Tensor& tensor) {
  return PartsAlong(mesh, tensor.sharding.open);
}

// Returns the block of `tensor` that mesh rank `rank` holds; may be empty.
Block ShardBlock(const Mesh& mesh, const Tensor& tensor, Operand operand, Rank rank);
inline Block ShardBlock(const Problem& problem, Operand operand, Rank rank) {
  return ShardBlock(problem.mesh, problem.tensors[operand], operand, rank);
}

// The layout of a shard is the same on every rank and sized for the largest: rows are
// `ShardPitchBytes` apart and take `ShardBytes` in all.
int64_t ShardPitchBytes(const Mesh& mesh, const Tensor& tensor);
int64_t ShardBytes(const Mesh& mesh, const Tensor& tensor);

// "0-3", "0,2,4-6": world ranks in the order of a mesh.
std::string FormatRanks(const std::vector<int>& ranks);
// "A[M_x, K] * B[K, N_x] -> C[M, N_x]"; then the operands that no operation uses: ", D[P, Q]". An
// operand whose dtype is not that of the first one has it after a colon: "C[M, N_x]:f32".
std::string SpecText(const Problem& problem);
// "M=8 N=8 K=8 bf16  mesh x=2"; "bf16 -> f32" if the result has another dtype; with an operand that
// no operation uses, "... bf16, D 4x6 f32  mesh".
std::string SizesText(const Problem& problem);
// Returns both texts in one line.
std::string ToString(const Problem& problem);
// "A[M_x, K]" with the axis names of `mesh`.
std::string ToString(const Mesh& mesh, const Tensor& tensor);

// Multiplications and additions of all operations.
double FlopCount(const Problem& problem);

// Checks that sizes are positive and small enough that no byte count overflows, that each axis
// splits an operand at most once and that the operations fit their matrices. Errors:
// INVALID_ARGUMENT; UNIMPLEMENTED for several operations.
absl::Status Validate(const Problem& problem);
// Check the mesh alone, and one tensor on a valid mesh.
absl::Status Validate(const Mesh& mesh);
absl::Status Validate(const Mesh& mesh, const Tensor& tensor);

}  // namespace agmm
