#include "kernels/predict/shardings.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

Cut CutOf(const Sharding& sharding, int axis) {
  if (absl::c_linear_search(sharding.rows, axis)) return Cut::kRows;
  return absl::c_linear_search(sharding.cols, axis) ? Cut::kCols : Cut::kNone;
}

// Returns the cut of an operand by an axis that cuts `dim` of the product.
Cut CutBy(const Problem& problem, Operand operand, std::optional<Dim> dim) {
  if (!dim || !HasDim(problem, operand, *dim)) return Cut::kNone;
  return IsRows(problem, operand, *dim) ? Cut::kRows : Cut::kCols;
}

std::vector<Cut> CutsOf(const Problem& problem, Operand operand, int axis, std::optional<Dim> dim,
                        Freedom freedom) {
  const Cut used = CutBy(problem, operand, dim);
  if (freedom == Freedom::kFixed) return {CutOf(problem.tensors[operand].sharding, axis)};
  if (operand == kC) {
    if (!dim) return {Cut::kNone};  // all ranks make all of it
    if (freedom == Freedom::kAny) return {Cut::kNone, Cut::kRows, Cut::kCols};
    if (*dim == Dim::kK) return {Cut::kRows, Cut::kCols};  // each rank sums a part
    return {used};
  }
  if (freedom == Freedom::kFree && used != Cut::kNone) return {used};
  return {Cut::kNone, Cut::kRows, Cut::kCols};
}

// The elements of an operand at a rank that holds and needs it, as parts of the whole operand.
struct Parts {
  double held = 1, needed = 1, both = 1;
};

// Returns the parts, where axes cut the operand as `uses` says, and it is needed as the product is
// cut.
Parts PartsOf(const Problem& problem, Operand operand, const AxisUses& uses) {
  Parts parts;
  for (size_t axis = 0; axis < uses.size(); ++axis) {
    const double part = 1.0 / problem.mesh.axes[axis].size;
    const Cut held = uses[axis].operands[operand],
              needed = CutBy(problem, operand, uses[axis].product);
    if (held != Cut::kNone) parts.held *= part;
    if (needed != Cut::kNone) parts.needed *= part;
    if (held != Cut::kNone) parts.both *= part;
    if (needed != Cut::kNone && needed != held) parts.both *= part;
  }
  return parts;
}

double ElementsOf(const Tensor& tensor) {
  return static_cast<double>(tensor.rows) * static_cast<double>(tensor.cols);
}

// Returns the axes for which `is_one` holds.
template <typename Predicate>
std::vector<int> AxesWith(const AxisUses& uses, const Predicate& is_one) {
  std::vector<int> axes;
  for (size_t axis = 0; axis < uses.size(); ++axis)
    if (is_one(uses[axis])) axes.push_back(static_cast<int>(axis));
  return axes;
}

void AddInput(const Problem& problem, Operand input, const AxisUses& uses,
              std::vector<OperandMove>* moves) {
  const auto needed = [&](const AxisUse& use) { return CutBy(problem, input, use.product); };
  const std::vector<int> axes = AxesWith(uses, [&](const AxisUse& use) {
    return use.operands[input] != Cut::kNone && use.operands[input] != needed(use);
  });
  if (axes.empty()) return;
  const bool exchanges =
      absl::c_any_of(axes, [&](int axis) { return needed(uses[axis]) != Cut::kNone; });
  const Parts parts = PartsOf(problem, input, uses);
  const Tensor& tensor = problem.tensors[input];
  moves->push_back({exchanges ? MoveKind::kAllToAll : MoveKind::kAllGather, input, axes,
                    ElementsOf(tensor) * (parts.needed - parts.both) *
                        static_cast<double>(SizeOf(tensor.dtype))});
}

// C travels from the ranks that make or sum it to the ones that keep it.
void AddResult(const Problem& problem, const AxisUses& uses, std::vector<OperandMove>* moves) {
  const Tensor& c = problem.tensors[kC];
  const Parts parts = PartsOf(problem, kC, uses);  // of what a rank makes, if K is not cut
  const auto element = static_cast<double>(SizeOf(c.dtype));
  const auto is_summed = [](const AxisUse& use) { return use.product == Dim::kK; };
  const std::vector<int> summed = AxesWith(uses, is_summed);
  if (!summed.empty()) {
    const bool all_want =
        absl::c_any_of(summed, [&](int axis) { return uses[axis].operands[kC] == Cut::kNone; });
    const double count = PartsAlong(problem.mesh, summed);
    const double piece = ElementsOf(c) * parts.needed / count;
    double bytes = (count - 1) * piece * static_cast<double>(SizeOf(DType::kF32));
    if (all_want) bytes += (count - 1) * piece * element;
    moves->push_back(
        {all_want ? MoveKind::kAllReduce : MoveKind::kReduceScatter, kC, summed, bytes});
  }
  const auto made = [&](const AxisUse& use) { return CutBy(problem, kC, use.product); };
  const std::vector<int> axes = AxesWith(uses, [&](const AxisUse& use) {
    return made(use) != Cut::kNone && use.operands[kC] != made(use);
  });
  if (axes.empty()) return;
  const bool exchanges =
      absl::c_any_of(axes, [&](int axis) { return uses[axis].operands[kC] != Cut::kNone; });
  moves->push_back({exchanges ? MoveKind::kAllToAll : MoveKind::kAllGather, kC, axes,
                    ElementsOf(c) * (parts.held - parts.both) * element});
}

// The ranks that exchange elements with rank 0 along these axes, itself included.
std::vector<Rank> GroupOf(const Mesh& mesh, const std::vector<int>& axes) {
  std::vector<Rank> group;
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    bool is_member = true;
    for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis)
      is_member &= mesh.Coordinate(rank, axis) == 0 || absl::c_linear_search(axes, axis);
    if (is_member) group.push_back(rank);
  }
  return group;
}

Inflow TorusInflow(const Platform& platform, const std::vector<Rank>& group) {
  const LinkRates& rates = platform.machine.within.rates;
  const auto& places = platform.torus.coordinates;
  Inflow inflow;
  for (size_t i = 0; i < platform.torus.axes.size(); ++i) {
    if (absl::c_all_of(group, [&](Rank rank) { return places[rank][i] == places[0][i]; })) continue;
    const TorusAxis& axis = platform.torus.axes[i];
    inflow.bytes_per_ns += axis.wraps ? rates.two_way : rates.one_way;
    inflow.latency_ns += rates.latency_ns * (axis.wraps ? axis.size / 2 : axis.size - 1);
  }
  return inflow;
}

Inflow NodeInflow(const Platform& platform, const std::vector<Rank>& group) {
  const Topology& topology = platform.topology;
  std::set<int> nodes;
  for (const Rank rank : group) nodes.insert(topology.node_of_rank[rank]);
  const auto in_node = absl::c_count_if(group, [&](Rank r) { return topology.SameNode(r, 0); });
  const auto others = static_cast<double>(group.size() - 1);
  if (nodes.size() == 1) {
    const bool loads = absl::c_all_of(group, [&](Rank rank) { return topology.CanLoad(rank, 0); });
    const Links& links = loads ? platform.machine.within : platform.machine.staged;
    const double ports = links.wiring == Wiring::kPairwise ? others : 1;
    return {links.rates.one_way * ports, links.rates.latency_ns};
  }
  // The groups of a node share its port, through which each element enters once for a group.
  const Links& links = platform.machine.between;
  const auto of_node = absl::c_count(topology.node_of_rank, topology.node_of_rank[0]);
  const double groups = static_cast<double>(of_node) / static_cast<double>(in_node);
  const double from_others = (others + 1 - static_cast<double>(in_node)) / others;
  const double ports =
      links.wiring == Wiring::kPairwise ? static_cast<double>(nodes.size() - 1) : 1;
  return {links.rates.one_way * ports / (groups * from_others), links.rates.latency_ns};
}

}  // namespace

std::vector<AxisUse> UsesOf(const Problem& problem, int axis, const Freedoms& freedoms) {
  std::vector<AxisUse> uses;
  std::vector<std::optional<Dim>> dims = {Dim::kM, Dim::kN, Dim::kK, std::nullopt};
  if (problem.mesh.axes[axis].size == 1) dims = {std::nullopt};
  for (const std::optional<Dim> dim : dims) {
    const auto cuts = [&](Operand operand) {
      if (problem.mesh.axes[axis].size == 1 && freedoms[operand] != Freedom::kFixed)
        return std::vector<Cut>{Cut::kNone};
      return CutsOf(problem, operand, axis, dim, freedoms[operand]);
    };
    for (const Cut a : cuts(kA)) {
      for (const Cut b : cuts(kB)) {
        for (const Cut c : cuts(kC)) uses.push_back({dim, {a, b, c}});
      }
    }
  }
  return uses;
}

Sharding ShardingOf(Operand operand, const AxisUses& uses, const std::vector<int>& order) {
  Sharding sharding;
  for (const int axis : order) {
    const Cut cut = uses[axis].operands[operand];
    if (cut == Cut::kRows) sharding.rows.push_back(axis);
    if (cut == Cut::kCols) sharding.cols.push_back(axis);
  }
  return sharding;
}

Problem ShardedBy(Problem problem, const AxisUses& uses, const std::vector<int>& order,
                  const Freedoms& freedoms) {
  for (const Operand operand : {kA, kB, kC}) {
    if (freedoms[operand] != Freedom::kFixed)
      problem.tensors[operand].sharding = ShardingOf(operand, uses, order);
  }
  return problem;
}

Split SplitOf(const AxisUses& uses, const std::vector<int>& order) {
  Split split;
  for (const int axis : order) {
    if (!uses[axis].product) continue;
    const Dim dim = *uses[axis].product;
    (dim == Dim::kM ? split.m : dim == Dim::kN ? split.n : split.k).push_back(axis);
  }
  return split;
}

LocalWork LocalWorkOf(const Problem& problem, const AxisUses& uses) {
  const Shape shape = ShapeOf(problem);
  int64_t m = 1, n = 1, k = 1;
  for (size_t axis = 0; axis < uses.size(); ++axis) {
    if (!uses[axis].product) continue;
    const Dim dim = *uses[axis].product;
    (dim == Dim::kM ? m : dim == Dim::kN ? n : k) *= problem.mesh.axes[axis].size;
  }
  const auto rows = static_cast<double>(CeilDiv(shape.m, m)),
             cols = static_cast<double>(CeilDiv(shape.n, n)),
             depth = static_cast<double>(CeilDiv(shape.k, k));
  const auto size = [&](Operand operand) {
    return static_cast<double>(SizeOf(problem.tensors[operand].dtype));
  };
  return {2 * rows * cols * depth,
          rows * depth * size(kA) + depth * cols * size(kB) + rows * cols * size(kC)};
}

AxisUses Transposed(const AxisUses& uses) {
  const auto turned = [](Cut cut) {
    return cut == Cut::kRows ? Cut::kCols : cut == Cut::kCols ? Cut::kRows : Cut::kNone;
  };
  AxisUses transposed;
  for (const AxisUse& use : uses) {
    std::optional<Dim> dim = use.product;
    if (dim && *dim != Dim::kK) dim = *dim == Dim::kM ? Dim::kN : Dim::kM;
    const auto& [a, b, c] = use.operands;
    transposed.push_back({dim, {turned(b), turned(a), turned(c)}});
  }
  return transposed;
}

std::vector<OperandMove> MovesOf(const Problem& problem, const AxisUses& uses) {
  std::vector<OperandMove> moves;
  AddInput(problem, kA, uses, &moves);
  AddInput(problem, kB, uses, &moves);
  AddResult(problem, uses, &moves);
  return moves;
}

std::string NameOf(MoveKind kind) {
  switch (kind) {
    case MoveKind::kAllGather: return "all-gather";
    case MoveKind::kAllToAll: return "all-to-all";
    case MoveKind::kReduceScatter: return "reduce-scatter";
    case MoveKind::kAllReduce: return "all-reduce";
  }
  return "";
}

std::string MovesText(const Problem& problem, const std::vector<OperandMove>& moves) {
  if (moves.empty()) return "nothing";
  return absl::StrJoin(moves, "; ", [&](std::string* out, const OperandMove& move) {
    absl::StrAppend(out, NameOf(move.kind), " ", problem.tensors[move.operand].name, " over ",
                    AxesText(problem.mesh, move.axes));
  });
}

Inflow InflowAlong(const Mesh& mesh, const Platform& platform, const std::vector<int>& axes) {
  const std::vector<Rank> group = GroupOf(mesh, axes);
  return platform.machine.within.wiring == Wiring::kTorus ? TorusInflow(platform, group)
                                                          : NodeInflow(platform, group);
}

double EstimateNs(const Inflow& inflow, const OperandMove& move) {
  // A sum that all ranks want travels twice.
  const int rounds = move.kind == MoveKind::kAllReduce ? 2 : 1;
  return std::max(move.bytes / inflow.bytes_per_ns, rounds * inflow.latency_ns);
}

}  // namespace agmm
