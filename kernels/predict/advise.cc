#include "kernels/predict/advise.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/predict/predict.h"
#include "kernels/predict/sharding_search.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

// Simulations end after this many combinations, or with the one that exceeds this many steps in
// all, about two seconds.
constexpr int64_t kMostTried = 48, kMostSteps = 200'000;
// Times that differ by less are equal.
constexpr double kEqual = 1.01;

absl::Status CheckRequest(const AdviceRequest& request) {
  if (request.products.empty() || request.keeps.size() != request.products.size())
    return absl::InvalidArgumentError("no product to advise on; give at least one");
  for (size_t p = 0; p < request.products.size(); ++p) {
    const Problem& problem = request.products[p];
    AGMM_RETURN_IF_ERROR(Validate(problem));
    if (!HasProduct(problem) || TheProduct(problem) != Product{kA, kB, kC}) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is not a product of two operands; advice is on products", SpecText(problem)));
    }
    for (const Tensor& tensor : problem.tensors) {
      if (OpenParts(problem.mesh, tensor) == 1) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("%s leaves its sum open, for which no advice is given; close it",
                          ToString(problem.mesh, tensor)));
    }
    if (p == 0) continue;
    const Problem& before = request.products[p - 1];
    const Tensor& made = before.tensors[kC];
    const bool is_linked = absl::c_any_of(std::array{kA, kB}, [&](Operand input) {
      const Tensor& tensor = problem.tensors[input];
      return tensor.name == made.name && tensor.rows == made.rows && tensor.cols == made.cols &&
             tensor.dtype == made.dtype;
    });
    if (problem.mesh != before.mesh || !is_linked) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s does not continue %s; the result of a product must be an input of the next one, with "
          "the same name, sizes and dtype",
          SpecText(problem), SpecText(before)));
    }
  }
  return absl::OkStatus();
}

// An advice with the numbers by which it is ranked.
struct Ranked {
  Advice advice;
  ShardingSearch::Columns alike;  // equal for a combination and its transposed one
  int64_t least_alike = 0;        // the smaller time of the two
  std::string text;
};

class Adviser {
 public:
  Adviser(const AdviceRequest& request, const Platform& platform)
      : request_(request), platform_(platform), search_(request, platform) {}

  absl::StatusOr<AdviceAnswer> Run();

 private:
  // The plans of a product as sharded.
  struct Simulated {
    Problem problem;
    Split split;
    std::vector<PredictedPlan> plans, bounded;  // fastest first
    bool tried_bounded = false;
  };

  void AddWork(const std::vector<PredictedPlan>& plans);
  Simulated& SimulatedOf(size_t product, const AxisUses& uses);
  // Returns the fastest plan whose workspace has at most `room` bytes; or nothing. In both cases,
  // `least` is the smallest workspace of a plan.
  std::optional<PredictedPlan> PlanWithin(Simulated* simulated, int64_t room, int64_t* least);
  // Returns the same for combinations that are each other transposed, if the request is symmetric.
  ShardingSearch::Columns AlikeOf(const std::vector<AxisUses>& uses) const;
  // Returns nothing if no plan fits the memory.
  std::optional<Ranked> RankedOf(const Combination& combination);
  void SimulateAll();
  void SetPlaces();
  std::string WhyFirst() const;

  const AdviceRequest& request_;
  const Platform& platform_;
  ShardingSearch search_;
  std::map<std::pair<size_t, AxisUses>, Simulated> simulated_;
  int64_t steps_ = 0;
  std::vector<Ranked> ranked_;
  AdviceAnswer answer_;
};

void Adviser::AddWork(const std::vector<PredictedPlan>& plans) {
  constexpr int64_t kStepsOfAPlan = 50;  // its fixed work is that of as many steps
  for (const PredictedPlan& plan : plans) steps_ += plan.steps + kStepsOfAPlan;
}

Adviser::Simulated& Adviser::SimulatedOf(size_t product, const AxisUses& uses) {
  const auto [at, is_new] = simulated_.try_emplace({product, uses});
  Simulated& simulated = at->second;
  if (!is_new) return simulated;
  simulated.problem =
      ShardedBy(request_.products[product], uses, search_.order(), search_.FreedomsOf(product));
  simulated.split = SplitOf(uses, search_.order());
  // Without a plan, the combination counts as too large.
  auto plans = PredictPlans(simulated.problem, platform_, simulated.split);
  if (plans.ok()) simulated.plans = *std::move(plans);
  AddWork(simulated.plans);
  return simulated;
}

std::optional<PredictedPlan> Adviser::PlanWithin(Simulated* simulated, int64_t room,
                                                 int64_t* least) {
  const auto fits = [&](const PredictedPlan& plan) { return plan.workspace_bytes <= room; };
  const bool fastest_fits = !simulated->plans.empty() && fits(simulated->plans.front());
  if (!fastest_fits && !simulated->tried_bounded) {
    simulated->tried_bounded = true;
    auto plans = PredictPlans(simulated->problem, platform_, simulated->split, /*bounded=*/true);
    if (plans.ok()) simulated->bounded = *std::move(plans);
    AddWork(simulated->bounded);
  }
  *least = kMaxWorkspaceBytes;
  std::optional<PredictedPlan> fastest;
  for (const auto* plans : {&simulated->plans, &simulated->bounded}) {
    for (const PredictedPlan& plan : *plans) {
      *least = std::min(*least, plan.workspace_bytes);
      if (fits(plan) && (!fastest || plan.time_ns < fastest->time_ns)) fastest = plan;
    }
  }
  return fastest;
}

ShardingSearch::Columns Adviser::AlikeOf(const std::vector<AxisUses>& uses) const {
  ShardingSearch::Columns columns = search_.ColumnsOf(uses);
  std::vector<AxisUses> transposed;
  for (size_t p = 0; p < uses.size(); ++p) {
    const Problem& problem = request_.products[p];
    const Shape shape = ShapeOf(problem);
    if (shape.m != shape.n || problem.tensors[kA].dtype != problem.tensors[kB].dtype)
      return columns;
    transposed.push_back(Transposed(uses[p]));
  }
  return std::min(std::move(columns), search_.ColumnsOf(transposed));
}

std::optional<Ranked> Adviser::RankedOf(const Combination& combination) {
  Ranked ranked;
  Advice& advice = ranked.advice;
  const int64_t room = request_.memory_bytes - combination.shard_bytes;
  int64_t workspace = 0, least_workspace = 0;
  bool fits = true;
  for (size_t p = 0; p < combination.uses.size(); ++p) {
    Simulated& simulated = SimulatedOf(p, combination.uses[p]);
    int64_t least = 0;
    const std::optional<PredictedPlan> plan = PlanWithin(&simulated, room, &least);
    least_workspace = std::max(least_workspace, least);
    fits &= plan.has_value();
    if (!plan) continue;
    const Problem& problem = simulated.problem;
    const SplitCost cost = CostOf(problem, simulated.split);
    AdvisedProduct& product = advice.products.emplace_back();
    product = {problem, *plan, MovesOf(problem, combination.uses[p]),
               GemmNsOf(problem, platform_, simulated.split), cost.busiest_bytes};
    absl::StrAppend(&ranked.text, SpecText(problem), " ");
    advice.time_ns += plan->time_ns;
    advice.gemm_ns += product.gemm_ns;
    advice.received_bytes += product.received_bytes;
    workspace = std::max(workspace, plan->workspace_bytes);
  }
  const int64_t need = combination.shard_bytes + (fits ? workspace : least_workspace);
  answer_.least_bytes = std::min(answer_.least_bytes, need);
  if (!fits) return std::nullopt;
  advice.memory_bytes = need;
  ranked.alike = AlikeOf(combination.uses);
  return ranked;
}

void Adviser::SimulateAll() {
  std::vector<int64_t> times;  // ascending
  const auto top = static_cast<size_t>(request_.top);
  for (const Combination& combination : search_.found()) {
    if (answer_.simulated == kMostTried || (steps_ > kMostSteps && !ranked_.empty())) break;
    // An estimate is near a lower bound, so the rest would come after the last place.
    if (times.size() >= top && combination.estimate_ns > static_cast<double>(times[top - 1])) break;
    std::optional<Ranked> ranked = RankedOf(combination);
    if (!ranked) {
      ++answer_.too_large;
      if (steps_ > 2 * kMostSteps) break;
      continue;
    }
    ++answer_.simulated;
    const int64_t time = ranked->advice.time_ns;
    times.insert(std::upper_bound(times.begin(), times.end(), time), time);
    ranked_.push_back(*std::move(ranked));
  }
}

void Adviser::SetPlaces() {
  // Among several splits of the same shardings, the fastest counts.
  absl::c_stable_sort(ranked_, [](const Ranked& x, const Ranked& y) {
    return std::tie(x.text, x.advice.time_ns) < std::tie(y.text, y.advice.time_ns);
  });
  const auto has_same_text = [](const Ranked& x, const Ranked& y) { return x.text == y.text; };
  ranked_.erase(std::unique(ranked_.begin(), ranked_.end(), has_same_text), ranked_.end());
  std::map<ShardingSearch::Columns, int64_t> least;
  for (const Ranked& one : ranked_) {
    const auto [at, is_new] = least.try_emplace(one.alike, one.advice.time_ns);
    at->second = std::min(at->second, one.advice.time_ns);
  }
  for (Ranked& one : ranked_) one.least_alike = least[one.alike];
  absl::c_stable_sort(
      ranked_, [](const Ranked& x, const Ranked& y) { return x.least_alike < y.least_alike; });
  for (size_t begin = 0; begin < ranked_.size();) {
    const double limit = static_cast<double>(ranked_[begin].least_alike) * kEqual;
    size_t end = begin;
    while (end < ranked_.size() && static_cast<double>(ranked_[end].least_alike) <= limit) ++end;
    std::stable_sort(ranked_.begin() + static_cast<std::ptrdiff_t>(begin),
                     ranked_.begin() + static_cast<std::ptrdiff_t>(end),
                     [](const Ranked& x, const Ranked& y) {
                       return std::tuple(x.advice.time_ns, x.advice.memory_bytes, x.text) <
                              std::tuple(y.advice.time_ns, y.advice.memory_bytes, y.text);
                     });
    for (size_t i = begin; i < end; ++i) {
      ranked_[i].advice.place = static_cast<int>(begin) + 1;
      ranked_[i].advice.is_shared = end - begin > 1;
    }
    begin = end;
  }
}

// "the first 3 are equal; they are 1.3 times faster than place 4, because ..."
std::string Adviser::WhyFirst() const {
  if (ranked_.empty()) return "";
  const Advice& first = ranked_.front().advice;
  const auto next =
      absl::c_find_if(ranked_, [](const Ranked& one) { return one.advice.place > 1; });
  const auto equal = next - ranked_.begin();
  if (next == ranked_.end()) {
    return equal == 1 ? "the only one that was simulated"
                      : absl::StrFormat("all %d that were simulated are equal", equal);
  }
  const Advice& other = next->advice;
  const auto us = [](int64_t ns) { return FormatMicros(static_cast<double>(ns) / 1e3); };
  const int64_t more_multiplies = other.gemm_ns - first.gemm_ns,
                more_else = other.time_ns - first.time_ns - more_multiplies;
  std::string reason;
  if (more_multiplies > more_else) {
    reason = absl::StrFormat("its local products take %s instead of %s", us(first.gemm_ns),
                             us(other.gemm_ns));
  } else if (first.received_bytes == 0) {
    reason = absl::StrFormat("nothing has to move; there, a rank receives %s",
                             FormatBytes(other.received_bytes));
  } else if (first.received_bytes < other.received_bytes) {
    reason = absl::StrFormat("a rank receives %s instead of %s", FormatBytes(first.received_bytes),
                             FormatBytes(other.received_bytes));
  } else {
    reason = absl::StrFormat("its transfers add %s to the local products instead of %s",
                             us(std::max<int64_t>(0, first.time_ns - first.gemm_ns)),
                             us(std::max<int64_t>(0, other.time_ns - other.gemm_ns)));
  }
  return absl::StrFormat(
      "%s%.3g times faster than place %d, because %s",
      equal == 1 ? "" : absl::StrFormat("the first %d are equal; the first one is ", equal),
      static_cast<double>(other.time_ns) / static_cast<double>(first.time_ns), other.place, reason);
}

absl::StatusOr<AdviceAnswer> Adviser::Run() {
  AGMM_RETURN_IF_ERROR(search_.Run());
  answer_.least_bytes = std::numeric_limits<int64_t>::max();
  SimulateAll();
  answer_.candidates = search_.examined();
  answer_.too_large += search_.too_large();
  if (search_.found().empty()) answer_.least_bytes = search_.least_bytes();
  SetPlaces();
  answer_.why = WhyFirst();
  for (Ranked& one : ranked_) {
    if (static_cast<int>(answer_.ranked.size()) == request_.top) break;
    answer_.ranked.push_back(std::move(one.advice));
  }
  return std::move(answer_);
}

}  // namespace

absl::StatusOr<AdviceAnswer> Advise(const AdviceRequest& request, const Platform& platform) {
  AGMM_RETURN_IF_ERROR(CheckRequest(request));
  AGMM_RETURN_IF_ERROR(CheckTopology(request.products.front(), platform.topology));
  return Adviser(request, platform).Run();
}

}  // namespace agmm
