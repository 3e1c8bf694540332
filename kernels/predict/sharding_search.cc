#include "kernels/predict/sharding_search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// The most candidates of a product. More take seconds.
constexpr size_t kMostCandidates = 200'000;
// The combinations with one sharding of an intermediate that go on to the next product: this many
// with the lowest estimates, and as many with the least memory.
constexpr size_t kMostKept = 128;

// The sizes of the physical axes that a mesh axis is on, with their ends.
std::vector<std::pair<int, bool>> PlaceOnTorus(const Platform& platform, const Mesh& mesh,
                                               int axis) {
  std::vector<std::pair<int, bool>> place;
  const auto& at = platform.torus.coordinates;
  for (size_t i = 0; i < platform.torus.axes.size(); ++i) {
    for (Rank rank = 0; rank < mesh.size(); ++rank) {
      bool only_along = at[rank][i] != at[0][i];
      for (int other = 0; other < static_cast<int>(mesh.axes.size()); ++other)
        only_along &= other == axis || mesh.Coordinate(rank, other) == 0;
      if (!only_along) continue;
      place.emplace_back(platform.torus.axes[i].size, platform.torus.axes[i].wraps);
      break;
    }
  }
  return place;
}

// Returns true if all pairs of ranks are connected alike, by links without exceptions.
bool IsUniform(const Platform& platform) {
  const Topology& topology = platform.topology;
  const auto pairs_are = [&](auto connected) {
    for (Rank rank = 1; rank < topology.rank_count(); ++rank)
      if (connected(rank) != connected(1)) return false;
    return true;
  };
  const std::set<int> nodes(topology.node_of_rank.begin(), topology.node_of_rank.end());
  if (static_cast<int>(nodes.size()) == topology.rank_count())
    return platform.machine.between.pairs.empty();
  return nodes.size() == 1 && pairs_are([&](Rank rank) { return topology.CanLoad(0, rank); });
}

}  // namespace

ShardingSearch::ShardingSearch(const AdviceRequest& request, const Platform& platform)
    : request_(request), platform_(platform), mesh_(request.products.front().mesh) {
  SetFreedoms();
  SetOrder();
  SetClasses();
}

void ShardingSearch::SetFreedoms() {
  for (size_t p = 0; p < request_.products.size(); ++p) {
    linked_.push_back(-1);
    if (p > 0) {
      const std::string& made = request_.products[p - 1].tensors[kC].name;
      linked_[p] = request_.products[p].tensors[kA].name == made ? kA : kB;
    }
    Freedoms& freedoms = freedoms_.emplace_back();
    for (const Operand operand : {kA, kB, kC}) {
      const bool is_shared =
          operand == linked_[p] || (operand == kC && p + 1 < request_.products.size());
      freedoms[operand] = request_.keeps[p][operand] ? Freedom::kFixed
                          : is_shared                ? Freedom::kAny
                                                     : Freedom::kFree;
    }
  }
}

// Axes are in the order in which fixed shardings name them, results first; else something would
// have to move for the order alone.
void ShardingSearch::SetOrder() {
  const auto add = [&](const std::vector<int>& axes) {
    for (const int axis : axes)
      if (!absl::c_linear_search(order_, axis)) order_.push_back(axis);
  };
  for (const Operand operand : {kC, kA, kB}) {
    for (size_t p = 0; p < request_.products.size(); ++p) {
      if (!request_.keeps[p][operand]) continue;
      add(request_.products[p].tensors[operand].sharding.rows);
      add(request_.products[p].tensors[operand].sharding.cols);
    }
  }
  for (int axis = 0; axis < static_cast<int>(mesh_.axes.size()); ++axis) add({axis});
}

bool ShardingSearch::IsFixed(int axis) const {
  for (size_t p = 0; p < request_.products.size(); ++p) {
    for (const Operand operand : {kA, kB, kC}) {
      const Sharding& sharding = request_.products[p].tensors[operand].sharding;
      if (request_.keeps[p][operand] && (absl::c_linear_search(sharding.rows, axis) ||
                                         absl::c_linear_search(sharding.cols, axis)))
        return true;
    }
  }
  return false;
}

void ShardingSearch::SetClasses() {
  const bool is_torus = platform_.machine.within.wiring == Wiring::kTorus;
  const bool is_uniform = !is_torus && IsUniform(platform_);
  const auto are_equal = [&](int x, int y) {
    if (mesh_.axes[x].size != mesh_.axes[y].size || IsFixed(x) || IsFixed(y)) return false;
    if (!is_torus) return is_uniform;
    return PlaceOnTorus(platform_, mesh_, x) == PlaceOnTorus(platform_, mesh_, y);
  };
  for (int axis = 0; axis < static_cast<int>(mesh_.axes.size()); ++axis) {
    class_.push_back(axis);
    for (int other = 0; other < axis; ++other) {
      if (class_[other] != other || !are_equal(axis, other)) continue;
      class_[axis] = other;
      break;
    }
  }
}

int64_t ShardingSearch::ShardBytesOf(size_t product, Operand operand, const AxisUses& uses) const {
  Tensor tensor = request_.products[product].tensors[operand];
  if (freedoms_[product][operand] != Freedom::kFixed)
    tensor.sharding = ShardingOf(operand, uses, order_);
  return ShardBytes(mesh_, tensor);
}

ShardingSearch::Candidate ShardingSearch::CandidateOf(size_t product, AxisUses uses) {
  const Problem& problem = request_.products[product];
  Candidate candidate;
  for (const OperandMove& move : MovesOf(problem, uses)) {
    const auto [inflow, is_new] = inflows_.try_emplace(move.axes);
    if (is_new) inflow->second = InflowAlong(mesh_, platform_, move.axes);
    candidate.moves_ns += EstimateNs(inflow->second, move);
  }
  const LocalWork work = LocalWorkOf(problem, uses);
  const DeviceRates device = RatesWithin(platform_.machine.device, work.bytes);
  const double gemm = std::max(ProductNs(device, problem.tensors[kA].dtype, work.flops, work.bytes),
                               work.bytes / device.memory);
  candidate.estimate_ns = std::max(gemm, candidate.moves_ns);
  for (const Operand operand : {kA, kB, kC}) {
    if (operand != linked_[product]) candidate.shard_bytes += ShardBytesOf(product, operand, uses);
  }
  candidate.uses = std::move(uses);
  return candidate;
}

absl::Status ShardingSearch::AddCandidates(size_t product) {
  const int axes = static_cast<int>(mesh_.axes.size());
  std::vector<std::vector<AxisUse>> choices;
  for (int axis = 0; axis < axes; ++axis)
    choices.push_back(UsesOf(request_.products[product], axis, freedoms_[product]));
  const bool is_alone = request_.products.size() == 1;
  std::vector<Candidate>& candidates = candidates_.emplace_back();
  std::vector<size_t> chosen(axes, 0);  // by axis
  // The first choice of an axis: permutations of equal axes have ascending choices.
  const auto first_of = [&](int axis) {
    if (!is_alone) return size_t{0};
    size_t first = 0;
    for (int other = 0; other < axis; ++other)
      if (class_[other] == class_[axis]) first = chosen[other];
    return first;
  };
  while (true) {
    if (candidates.size() == kMostCandidates) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "mesh %s has more than %d combinations of shardings and splits; use fewer axes, or fix "
          "the sharding of an operand",
          mesh_.ToString(), kMostCandidates));
    }
    AxisUses uses;
    for (int axis = 0; axis < axes; ++axis) uses.push_back(choices[axis][chosen[axis]]);
    candidates.push_back(CandidateOf(product, std::move(uses)));
    int axis = axes - 1;
    while (axis >= 0 && ++chosen[axis] == choices[axis].size()) --axis;
    if (axis < 0) return absl::OkStatus();
    for (int later = axis + 1; later < axes; ++later) chosen[later] = first_of(later);
  }
}

void ShardingSearch::Thin(size_t product) {
  std::map<Cuts, std::vector<Combination>> by_cuts;
  for (Combination& one : found_) {
    Cuts cuts;
    for (const AxisUse& use : one.uses[product]) cuts.push_back(use.operands[kC]);
    by_cuts[cuts].push_back(std::move(one));
  }
  found_.clear();
  for (auto& [cuts, all] : by_cuts) {
    const auto keep_first = [&](auto begin) {
      const auto end = std::min(begin + kMostKept, all.end());
      std::move(begin, end, std::back_inserter(found_));
      return end;
    };
    absl::c_stable_sort(all, [](const Combination& x, const Combination& y) {
      return std::tuple(x.estimate_ns, x.moves_ns) < std::tuple(y.estimate_ns, y.moves_ns);
    });
    const auto rest = keep_first(all.begin());
    std::stable_sort(rest, all.end(), [](const Combination& x, const Combination& y) {
      return x.shard_bytes < y.shard_bytes;
    });
    keep_first(rest);
  }
}

void ShardingSearch::Extend(size_t product) {
  std::map<Cuts, std::vector<const Candidate*>> by_cuts;  // of the operand that it takes
  for (const Candidate& candidate : candidates_[product]) {
    Cuts cuts;
    if (linked_[product] >= 0) {
      for (const AxisUse& use : candidate.uses) cuts.push_back(use.operands[linked_[product]]);
    }
    by_cuts[cuts].push_back(&candidate);
  }
  std::vector<Combination> before = std::move(found_);
  found_.clear();
  if (product == 0) before.emplace_back();
  for (const Combination& one : before) {
    Cuts cuts;
    if (product > 0) {
      for (const AxisUse& use : one.uses.back()) cuts.push_back(use.operands[kC]);
    }
    for (const Candidate* candidate : by_cuts[cuts]) {
      ++examined_;
      const int64_t bytes = one.shard_bytes + candidate->shard_bytes;
      const int64_t least = bytes + least_after_[product];
      least_bytes_ = product == 0 && examined_ == 1 ? least : std::min(least_bytes_, least);
      if (least > request_.memory_bytes) {
        ++too_large_;
        continue;
      }
      Combination& longer = found_.emplace_back(one);
      longer.uses.push_back(candidate->uses);
      longer.estimate_ns += candidate->estimate_ns;
      longer.moves_ns += candidate->moves_ns;
      longer.shard_bytes = bytes;
    }
  }
}

ShardingSearch::Columns ShardingSearch::ColumnsOf(const std::vector<AxisUses>& uses) const {
  Columns columns(mesh_.axes.size());
  for (const AxisUses& of_product : uses) {
    for (size_t axis = 0; axis < of_product.size(); ++axis)
      columns[axis].push_back(of_product[axis]);
  }
  for (int first = 0; first < static_cast<int>(class_.size()); ++first) {
    Columns equal;
    for (size_t axis = 0; axis < class_.size(); ++axis)
      if (class_[axis] == first) equal.push_back(columns[axis]);
    absl::c_sort(equal);
    auto next = equal.begin();
    for (size_t axis = 0; axis < class_.size(); ++axis)
      if (class_[axis] == first) columns[axis] = *next++;
  }
  return columns;
}

void ShardingSearch::DropPermuted() {
  std::set<Columns> seen;
  found_.erase(std::remove_if(found_.begin(), found_.end(),
                              [&](const Combination& one) {
                                return !seen.insert(ColumnsOf(one.uses)).second;
                              }),
               found_.end());
}

absl::Status ShardingSearch::Run() {
  const size_t products = request_.products.size();
  for (size_t p = 0; p < products; ++p) AGMM_RETURN_IF_ERROR(AddCandidates(p));
  least_after_.assign(products, 0);
  for (size_t p = products; p-- > 1;) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const Candidate& one : candidates_[p]) least = std::min(least, one.shard_bytes);
    least_after_[p - 1] = least_after_[p] + least;
  }
  for (size_t p = 0; p < products; ++p) {
    Extend(p);
    if (p + 1 < products) Thin(p);
  }
  if (products > 1) DropPermuted();
  absl::c_stable_sort(found_, [](const Combination& x, const Combination& y) {
    return std::tuple(x.estimate_ns, x.moves_ns, x.shard_bytes) <
           std::tuple(y.estimate_ns, y.moves_ns, y.shard_bytes);
  });
  return absl::OkStatus();
}

}  // namespace agmm
