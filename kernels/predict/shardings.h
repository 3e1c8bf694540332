// The use of mesh axes by the operands of a product and by its local products, and what must move
// under each use. In all functions, the product's operands are tensors[kA], [kB] and [kC], and no
// sum is open.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kernels/predict/platform.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/split.h"

namespace agmm {

// The dimension of an operand that a mesh axis cuts.
enum class Cut { kNone, kRows, kCols };

// The use of one mesh axis.
struct AxisUse {
  std::optional<Dim> product;   // the dimension of the product that it cuts
  std::array<Cut, 3> operands;  // by operand
  bool operator==(const AxisUse&) const = default;
  auto operator<=>(const AxisUse&) const = default;
};
using AxisUses = std::vector<AxisUse>;  // by mesh axis

// The shardings that an operand may get.
enum class Freedom {
  kFixed,  // its own
  kAny,    // all of them, because another product also uses it
  kFree,   // the ones that can be best: if ranks held other elements than they multiply or make,
           // more would move, or the same with more memory
};
using Freedoms = std::array<Freedom, 3>;  // by operand

// Returns every use of an axis that the operands' freedoms allow.
std::vector<AxisUse> UsesOf(const Problem& problem, int axis, const Freedoms& freedoms);

// Axes that cut one dimension are in the order of `order`, which lists all axes of the mesh.
Sharding ShardingOf(Operand operand, const AxisUses& uses, const std::vector<int>& order);
// Returns the problem with the shardings of `uses`; fixed operands keep theirs.
Problem ShardedBy(Problem problem, const AxisUses& uses, const std::vector<int>& order,
                  const Freedoms& freedoms);
Split SplitOf(const AxisUses& uses, const std::vector<int>& order);
// Returns the flops, and the bytes that it reads and writes, of the largest local product.
struct LocalWork {
  double flops = 0, bytes = 0;
};
LocalWork LocalWorkOf(const Problem& problem, const AxisUses& uses);

// Returns the uses in the transposed product, B^T * A^T -> C^T.
AxisUses Transposed(const AxisUses& uses);

enum class MoveKind { kAllGather, kAllToAll, kReduceScatter, kAllReduce };
std::string NameOf(MoveKind kind);  // "all-gather"

// A collective that a plan of the product contains in some form.
struct OperandMove {
  MoveKind kind = MoveKind::kAllGather;
  Operand operand = 0;
  std::vector<int> axes;
  // Into a rank; exact if all sizes divide evenly. The terms of a sum are f32.
  double bytes = 0;
  bool operator==(const OperandMove&) const = default;
};
// Returns the collectives in the order of a plan: the inputs, then the result.
std::vector<OperandMove> MovesOf(const Problem& problem, const AxisUses& uses);
// "all-gather A over x; reduce-scatter C over y"; "nothing".
std::string MovesText(const Problem& problem, const std::vector<OperandMove>& moves);

// The bytes/ns into a rank along mesh axes, and the latency until the last ones arrive. On a torus,
// those of a gather both ways along all axes at once (the scaling book, part 3): V / (W axes) on
// rings; a line receives everything at one end. Elsewhere, the ranks of a node share its port.
struct Inflow {
  double bytes_per_ns = 0, latency_ns = 0;
};
Inflow InflowAlong(const Mesh& mesh, const Platform& platform, const std::vector<int>& axes);
// Returns an estimate of the time of a collective, alone.
double EstimateNs(const Inflow& inflow, const OperandMove& move);

}  // namespace agmm
