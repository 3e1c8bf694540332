#include "kernels/predict/tuning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

bool AreOneRate(double x, double y) {
  return x == 0 || y == 0 || std::max(x, y) <= kSameRate * std::min(x, y);
}

// Returns the sum of |log2| over the dimensions; infinity if one differs by more than kNearShape.
double Distance(const TuningKey& x, const TuningKey& y) {
  double sum = 0;
  for (const auto& [of_x, of_y] : {std::pair(x.m, y.m), {x.n, y.n}, {x.k, y.k}}) {
    if (of_x == of_y) continue;
    const auto low = static_cast<double>(std::min(of_x, of_y));
    const auto high = static_cast<double>(std::max(of_x, of_y));
    if (low <= 0 || high > kNearShape * low) return std::numeric_limits<double>::infinity();
    sum += std::log2(high / low);
  }
  return sum;
}

}  // namespace

std::string SpecWithoutDtypes(const Problem& problem) {
  Problem plain = problem;
  for (Tensor& tensor : plain.tensors) tensor.dtype = DType::kF32;
  return SpecText(plain);
}

std::vector<int> RanksPerNode(const Topology& topology) {
  std::vector<int> counts;
  std::set<int> seen;
  const std::vector<int>& nodes = topology.node_of_rank;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    if (rank > 0 && nodes[rank] == nodes[rank - 1]) {
      ++counts.back();
      continue;
    }
    if (!seen.insert(nodes[rank]).second) return {};
    counts.push_back(1);
  }
  return counts;
}

double MeasuredBetween(const Topology& topology, const Machine& machine) {
  const std::set<int> nodes(topology.node_of_rank.begin(), topology.node_of_rank.end());
  if (nodes.size() < 2 || machine.version == 0) return 0;
  // Exceptions are slower than all other links.
  double slowest = machine.between.rates.one_way;
  for (const PairRates& pair : machine.between.pairs)
    if (nodes.count(pair.from) > 0 && nodes.count(pair.to) > 0)
      slowest = std::min(slowest, pair.one_way);
  return slowest;
}

TuningKey TuningKeyOf(const Problem& problem, const Topology& topology, const Machine& machine,
                      const std::string& hardware) {
  TuningKey key;
  key.spec = SpecWithoutDtypes(problem);
  for (const Tensor& tensor : problem.tensors) key.dtypes.push_back(tensor.dtype);
  key.mesh = problem.mesh.ToString();
  key.ranks_per_node = RanksPerNode(topology);
  const Shape shape = ShapeOf(problem);
  key.m = shape.m;
  key.n = shape.n;
  key.k = shape.k;
  key.hardware = hardware;
  key.between_bytes_per_ns = MeasuredBetween(topology, machine);
  return key;
}

std::string ToString(const TunedPlan& plan) {
  return absl::StrCat(plan.key.m, " x ", plan.key.n, " x ", plan.key.k, ": ",
                      ToString(plan.options), "; ", plan.time_us, " us, serial ", plan.serial_us,
                      ", ", plan.date);
}

bool DifferInShapeAlone(const TuningKey& tuned, const TuningKey& key) {
  return tuned.spec == key.spec && tuned.dtypes == key.dtypes && tuned.mesh == key.mesh &&
         tuned.ranks_per_node == key.ranks_per_node && tuned.hardware == key.hardware &&
         AreOneRate(tuned.between_bytes_per_ns, key.between_bytes_per_ns);
}

bool HaveOneShape(const TuningKey& x, const TuningKey& y) {
  return x.m == y.m && x.n == y.n && x.k == y.k;
}

TuningTable::Match TuningTable::Find(const TuningKey& key) const {
  Match match;
  if (key.ranks_per_node.empty()) return match;
  double nearest = std::numeric_limits<double>::infinity();
  for (const TunedPlan& plan : plans_) {
    // Compared first, because that is fast and most plans are for other shapes.
    const double distance = Distance(plan.key, key);
    if (distance >= nearest || !DifferInShapeAlone(plan.key, key)) continue;
    if (HaveOneShape(plan.key, key)) return {&plan, true};
    nearest = distance;
    match.plan = &plan;
  }
  return match;
}

}  // namespace agmm
