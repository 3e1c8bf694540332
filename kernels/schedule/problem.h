// The product to compute: a mesh, and matrices sharded over it. Nothing here says how.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "kernels/schedule/topology.h"

namespace agmm {

using Operand = int;  // index into Problem::tensors
inline constexpr Operand kA = 0, kB = 1, kC = 2;

// Rows of every resident tensor and of every workspace block start at multiples of this many bytes,
// and own the padding up to the next multiple.
inline constexpr int64_t kRowAlignBytes = 128;

// The most rows or columns of a tensor, so that the product of two dimensions and an element size
// is far inside 63 bits.
inline constexpr int64_t kMaxDimension = int64_t{1} << 28;
// The most ranks of a mesh.
inline constexpr int kMaxRanks = 4096;

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const Range&) const = default;
};

// A rectangle of an operand, in the operand's global coordinates.
struct Block {
  Operand operand = 0;
  Range rows, cols;
  bool empty() const { return rows.empty() || cols.empty(); }
  bool operator==(const Block&) const = default;
};

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
  // The coordinate of mesh rank `rank` along axis `axis`.
  int Coordinate(Rank rank, int axis) const;
  // "x=4" or "dp=2,tp=4".
  std::string ToString() const;
  bool operator==(const Mesh&) const = default;
};

// Which mesh axes each dimension is split over, major axis first.
struct Sharding {
  std::vector<int> rows, cols;  // indices into Mesh::axes
  bool operator==(const Sharding&) const = default;
};

struct Tensor {
  std::string name;              // "A"
  std::string row_dim, col_dim;  // "M", "K"
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
  Sharding sharding;
  bool operator==(const Tensor&) const = default;
};

// tensors[kA] * tensors[kB] -> tensors[kC].
struct Problem {
  Mesh mesh;
  std::vector<Tensor> tensors;
  int64_t m() const { return tensors[kA].rows; }
  int64_t k() const { return tensors[kA].cols; }
  int64_t n() const { return tensors[kB].cols; }
  bool operator==(const Problem&) const = default;
};

// The part-th of `parts` near-equal pieces of [0, total): sizes differ by at most one, larger ones
// first, empty ones (total < parts) last.
Range SplitRange(int64_t total, int parts, int part);

// The block of `tensor` that mesh rank `rank` holds; may be empty.
Block ShardBlock(const Mesh& mesh, const Tensor& tensor, Operand operand, Rank rank);
inline Block ShardBlock(const Problem& problem, Operand operand, Rank rank) {
  return ShardBlock(problem.mesh, problem.tensors[operand], operand, rank);
}

// The layout of a shard is the same on every rank and sized for the largest: rows are
// `ShardPitchBytes` apart and take `ShardBytes` in all.
int64_t ShardPitchBytes(const Mesh& mesh, const Tensor& tensor);
int64_t ShardBytes(const Mesh& mesh, const Tensor& tensor);

// "A[M_x, K] * B[K, N_x] -> C[M, N_x]".
std::string SpecText(const Problem& problem);
// "M=8 N=8 K=8 bf16  mesh x=2".
std::string SizesText(const Problem& problem);
// Both in one line.
std::string ToString(const Problem& problem);
// "A[M_x, K]" with the axis names of `mesh`.
std::string ToString(const Mesh& mesh, const Tensor& tensor);

// Checks that sizes are positive and small enough that no byte count overflows, that each axis
// splits an operand once and that the matrices make a product. Errors: INVALID_ARGUMENT.
absl::Status Validate(const Problem& problem);
// Check the mesh alone, and one tensor on a valid mesh.
absl::Status Validate(const Mesh& mesh);
absl::Status Validate(const Mesh& mesh, const Tensor& tensor);

}  // namespace agmm
