#include "kernels/schedule/split.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/units.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

// With more axes of more than one rank, axes that play the same part are cut as one, because
// 4^axes splits are compared.
constexpr int kMaxSplitAxes = 6;

// Returns the axes in the order of the lists that name them first, and then the others.
std::vector<int> InOrder(const std::vector<int>& axes,
                         std::initializer_list<const std::vector<int>*> lists) {
  std::vector<int> order;
  const auto add = [&](int axis) {
    if (absl::c_linear_search(axes, axis) && !absl::c_linear_search(order, axis))
      order.push_back(axis);
  };
  for (const std::vector<int>* list : lists) absl::c_for_each(*list, add);
  absl::c_for_each(axes, add);
  return order;
}

Split Ordered(const Problem& problem, const Split& split) {
  const auto& [a, b, c] = TheProduct(problem);
  const auto axes = [&](Operand operand, Dim dim) {
    return &Along(problem, operand, problem.tensors[operand].sharding, dim);
  };
  return {InOrder(split.m, {axes(c, Dim::kM), axes(a, Dim::kM)}),
          InOrder(split.n, {axes(c, Dim::kN), axes(b, Dim::kN)}),
          InOrder(split.k, {axes(a, Dim::kK), axes(b, Dim::kK)})};
}

Range PartOf(const Problem& problem, const std::vector<int>& axes, int64_t total, Rank rank) {
  const Position position = PositionAlong(problem.mesh, axes, rank);
  return SplitRange(total, position.parts, position.part);
}

int64_t Bytes(const Problem& problem, const Block& block) {
  return block.empty()
             ? 0
             : block.rows.size() * block.cols.size() * SizeOf(problem.tensors[block.operand].dtype);
}

// Returns the bytes of `needed` that are not in `held`.
int64_t MissingBytes(const Problem& problem, const Block& needed, const Block& held) {
  return Bytes(problem, needed) - Bytes(problem, Intersect(needed, held));
}

bool Covers(const Block& outer, const Block& inner) {
  return inner.empty() || Intersect(outer, inner) == inner;
}

// Returns groups of axes, in which each split cuts one dimension: single axes, or with more than
// kMaxSplitAxes, all axes by which the same tensors are sharded in the same way.
std::vector<std::vector<int>> GroupsOfAxes(const Problem& problem) {
  std::vector<std::vector<int>> groups;
  std::map<std::vector<int>, size_t> by_part;
  int axes = 0;
  for (const Axis& axis : problem.mesh.axes) axes += axis.size > 1;
  for (int axis = 0; axis < static_cast<int>(problem.mesh.axes.size()); ++axis) {
    if (problem.mesh.axes[axis].size == 1) continue;
    std::vector<int> part;
    for (const Tensor& tensor : problem.tensors) {
      const Sharding& sharding = tensor.sharding;
      for (const std::vector<int>* list : {&sharding.rows, &sharding.cols, &sharding.open})
        part.push_back(absl::c_linear_search(*list, axis));
    }
    if (axes <= kMaxSplitAxes) part = {axis};
    const auto [at, is_new] = by_part.try_emplace(part, groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].push_back(axis);
  }
  if (groups.size() > kMaxSplitAxes) groups.resize(kMaxSplitAxes);
  return groups;
}

}  // namespace

std::string SplitText(const Problem& problem, const Split& split) {
  std::vector<std::string> cuts;
  const auto add = [&](Dim dim, const std::vector<int>& axes) {
    if (axes.empty()) return;
    cuts.push_back(absl::StrCat(DimensionOf(problem, dim).name, "=", AxesText(problem.mesh, axes)));
  };
  add(Dim::kM, split.m);
  add(Dim::kN, split.n);
  add(Dim::kK, split.k);
  return cuts.empty() ? "none" : absl::StrJoin(cuts, ",");
}

std::vector<Split> Splits(const Problem& problem) {
  if (!HasProduct(problem)) return {Split{}};
  const std::vector<std::vector<int>> groups = GroupsOfAxes(problem);
  std::vector<Split> splits;
  for (int code = 0; code < 1 << (2 * groups.size()); ++code) {
    Split split;
    // Cuts come before no cut, so that of two splits with equal cost the more specific one is
    // chosen.
    std::vector<int>* const dims[] = {&split.m, &split.n, &split.k, nullptr};
    for (size_t i = 0; i < groups.size(); ++i) {
      if (std::vector<int>* dim = dims[code >> (2 * i) & 3])
        dim->insert(dim->end(), groups[i].begin(), groups[i].end());
    }
    splits.push_back(Ordered(problem, split));
  }
  return splits;
}

bool KeepsK(const Problem& problem) {
  const Product& product = TheProduct(problem);
  return absl::c_all_of(std::initializer_list<Operand>{product.a, product.b}, [&](Operand input) {
    return Along(problem, input, problem.tensors[input].sharding, Dim::kK).empty();
  });
}

std::vector<int> SummedAxes(const Problem& problem, const Split& split) {
  std::vector<int> axes;
  const std::vector<int>& open = problem.tensors[TheProduct(problem).c].sharding.open;
  absl::c_copy_if(split.k, std::back_inserter(axes),
                  [&](int axis) { return !absl::c_linear_search(open, axis); });
  return axes;
}

absl::Status CheckSplit(const Problem& problem, const Split& split) {
  const Tensor& c = problem.tensors[TheProduct(problem).c];
  if (OpenParts(problem.mesh, c) == 1) return absl::OkStatus();
  const Dimension k = DimensionOf(problem, Dim::kK);
  if (const int parts = OpenParts(problem.mesh, c); k.size < parts) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %d, and %s leaves its sum open over %d ranks, each of which needs a "
                        "part; use fewer ranks or close the sum",
                        k.name, k.size, ToString(problem.mesh, c), parts));
  }
  for (const int axis : c.sharding.open) {
    if (problem.mesh.axes[axis].size == 1 || absl::c_linear_search(split.k, axis)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "split %s does not cut %s over axis %s, but %s leaves its sum over %s open; use a split "
        "such as %s=%s",
        SplitText(problem, split), k.name, problem.mesh.axes[axis].name, ToString(problem.mesh, c),
        problem.mesh.axes[axis].name, k.name, AxesText(problem.mesh, c.sharding.open)));
  }
  if (const int parts = PartsAlong(problem.mesh, split.k); k.size < parts) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "split %s cuts %s, which is %d, into %d parts, but every rank needs one for "
        "the open sum of %s; cut it over fewer axes",
        SplitText(problem, split), k.name, k.size, parts, c.name));
  }
  return absl::OkStatus();
}

Work WorkOf(const Problem& problem, const Split& split) {
  Work work;
  const int ranks = problem.mesh.size();
  const Operand c = TheProduct(problem).c;
  const Shape shape = ShapeOf(problem);
  work.summed = PartsAlong(problem.mesh, SummedAxes(problem, split)) > 1 && shape.k > 1;
  for (Rank rank = 0; rank < ranks; ++rank) {
    work.parts.push_back({PartOf(problem, split.m, shape.m, rank),
                          PartOf(problem, split.n, shape.n, rank),
                          PartOf(problem, split.k, shape.k, rank)});
    if (work.parts.back().k.empty()) work.parts.back() = {};
    work.c_travels |=
        !Covers(NeededBlock(problem, c, work.parts.back()), ShardBlock(problem, c, rank));
  }
  if (work.c_travels || work.summed) return work;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const Block wanted = ShardBlock(problem, c, rank);
    work.parts[rank].m = Along(problem, c, wanted, Dim::kM);
    work.parts[rank].n = Along(problem, c, wanted, Dim::kN);
  }
  return work;
}

Block NeededBlock(const Problem& problem, Operand operand, const LocalProduct& part) {
  // A rank that multiplies nothing needs no inputs, but still makes its block of C.
  if (operand != ResultOf(problem) && part.empty()) return {operand, {}, {}};
  return BlockOf(problem, operand, part);
}

bool IsBetter(const SplitCost& x, const SplitCost& y) {
  const auto key = [](const SplitCost& cost) {
    const bool moves = cost.busiest_bytes > 0;
    return std::tuple(moves, cost.busiest_bytes, cost.flops, cost.c_travels);
  };
  return key(x) < key(y);
}

SplitCost CostOf(const Problem& problem, const Split& split) {
  SplitCost cost;
  const Work work = WorkOf(problem, split);
  cost.c_travels = work.c_travels;
  const Product& product = TheProduct(problem);
  // Ranks beyond the length of K make no part of a sum.
  const int64_t parts_of_a_sum =
      std::min<int64_t>(PartsAlong(problem.mesh, SummedAxes(problem, split)), ShapeOf(problem).k);
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    const LocalProduct& part = work.parts[rank];
    int64_t kept = 0;
    int64_t terms = 0;  // of inputs whose sum is closed first
    for (Operand input : {product.a, product.b}) {
      const Block needed = NeededBlock(problem, input, part);
      const Block held = ShardBlock(problem, input, rank);
      const int parts = OpenParts(problem.mesh, problem.tensors[input]);
      kept += MissingBytes(problem, needed, held);
      if (parts == 1 || held.empty()) continue;
      // Ranks sum equal parts of what they hold, and gather the others of what they need.
      const int64_t summed = CeilDiv(held.rows.size() * held.cols.size(), parts);
      terms += (parts - 1) * summed * SizeOf(DType::kF32);
      kept += std::max<int64_t>(0, Bytes(problem, Intersect(needed, held)) -
                                       summed * SizeOf(problem.tensors[input].dtype));
    }
    const Block made = NeededBlock(problem, product.c, part),
                wanted = ShardBlock(problem, product.c, rank);
    int64_t into = kept + terms + MissingBytes(problem, wanted, made);
    // C that belongs to other ranks is made outside the shard.
    int64_t beside = MissingBytes(problem, made, wanted);
    if (parts_of_a_sum > 1) {
      const int64_t elements = made.empty() ? 0 : made.rows.size() * made.cols.size();
      const int64_t summed = CeilDiv(elements, parts_of_a_sum);
      const int64_t summed_bytes = summed * SizeOf(problem.tensors[product.c].dtype);
      into = kept + terms + (parts_of_a_sum - 1) * summed * SizeOf(DType::kF32) +
             Bytes(problem, wanted) -
             std::min(summed_bytes, Bytes(problem, Intersect(wanted, made)));
      beside = part.empty() ? 0 : elements * SizeOf(DType::kF32);
    }
    cost.busiest_bytes = std::max(cost.busiest_bytes, into);
    cost.moved_bytes += into;
    cost.memory_bytes = std::max(cost.memory_bytes, kept + terms + beside);
    if (!part.empty()) {
      const double flops = 2.0 * part.m.size() * part.n.size() * part.k.size();
      cost.flops = std::max(cost.flops, static_cast<int64_t>(std::min(flops, 4e18)));
    }
  }
  return cost;
}

}  // namespace agmm
