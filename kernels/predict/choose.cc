#include "kernels/predict/choose.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/predict/estimate.h"
#include "kernels/predict/simulate.h"
#include "kernels/schedule/demand.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/movement.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

// The most splits whose routes are estimated.
constexpr int kMostSplits = 8;
// The most candidates of one split and one algorithm that are simulated before others.
constexpr int kMostAlike = 3;
// The most candidates that are simulated before twins of the fastest one.
constexpr size_t kMostBeforeTwins = 8;
// A smaller piece is mostly the cost of its message.
constexpr int64_t kMinPieceBytes = 4 << 10;
constexpr int kMostPieces = 32;
// The K of a piece. A multiply of less depth mostly loads and stores C.
constexpr int64_t kMinPieceDepth = 64;
// The most pieces of an operand that a rank gathers. More take long to plan and gain little.
constexpr int kMostArrivals = 256;
// The fewest shards for which a bounded workspace has room.
constexpr int kFewestShards = 2;
// The steps that are counted, or estimated, in about the time in which one is planned and
// simulated. Measured with 64 ranks: 0.12 to 1.3 us to count one, 0.3 to 1.4 to estimate it, and 5
// to 10 to plan and simulate it.
constexpr int64_t kCountedPerStep = 32, kEstimatedPerStep = 16;
// The parts of the compared steps that estimates and simulations may take. Up to 64 ranks,
// estimates take less.
constexpr double kEstimatedPart = 0.5, kSimulatedPart = 0.75;
// While no candidate can be taken, simulations go on for this many times their steps.
constexpr int64_t kLongerWithoutOne = 4;
// A split whose best estimate is beyond this factor of the best one is not tried before others.
constexpr double kNear = 1.5;
// If the times of candidates differ by less, the one with the fewest steps is taken, because no
// machine is known more exactly.
constexpr double kAlike = 0.01;

// A split and an algorithm, with the requests that they keep.
struct Family {
  Recipe recipe;         // in the requested numbers of pieces, or one
  int64_t steps = 0;     // without joins; more pieces have more
  int dropped = 0;       // requests that it does not keep
  std::string not_kept;  // the reasons
  bool travels = false;
  std::optional<RouteEstimate> estimate;
};

struct Open {
  PlanCandidate candidate;
  const Family* family = nullptr;
  int64_t steps = 0;  // without joins
};

// Algorithms whose estimates are equal for one split in the same pieces. On two ranks most are, and
// all of them would take the places of other splits and pieces.
using Twins = std::deque<Open>;

// Returns the names of the options that the recipe does not keep.
std::vector<std::string> DroppedFrom(const PlanOptions& asked, const Recipe& recipe) {
  std::vector<std::string> dropped;
  if (asked.workspace_shards > 0 && recipe.workspace_shards == 0)
    dropped.push_back("workspace_shards");
  if (asked.carried && !recipe.carried) dropped.push_back("carried");
  if (asked.partials != recipe.partials) dropped.push_back("partials");
  if (asked.chunks > 1 && recipe.chunks != asked.chunks) dropped.push_back("chunks");
  if (asked.k_chunks > 1 && recipe.k_chunks != asked.k_chunks) dropped.push_back("k_chunks");
  return dropped;
}

bool IsSerial(const Recipe& recipe) { return recipe.algorithm->arrivals == Arrivals::kContiguous; }

bool IsSerial(const Open& one) { return IsSerial(one.candidate.recipe); }

bool AreTwins(const Open& x, const Open& y) {
  const Recipe &a = x.candidate.recipe, &b = y.candidate.recipe;
  return x.candidate.estimate_ns == y.candidate.estimate_ns && IsSerial(x) == IsSerial(y) &&
         x.family->dropped == y.family->dropped && a.split == b.split && a.chunks == b.chunks &&
         a.k_chunks == b.k_chunks;
}

std::string Text(int64_t ns) { return FormatMicros(static_cast<double>(ns) * 1e-3); }

class Chooser {
 public:
  Chooser(const Problem& problem, const Platform& platform, const PlanOptions& asked,
          const ChooseLimits& limits)
      : problem_(problem),
        platform_(platform),
        asked_(asked),
        limits_(limits),
        network_(platform),
        most_steps_(limits.compared_steps > 0 ? limits.compared_steps
                                              : ComparedStepsFor(problem.mesh.size())) {}

  absl::StatusOr<Choice> Run();

 private:
  absl::StatusOr<std::vector<Split>> SplitsToTry() const;
  // Without joins.
  int64_t StepsOf(const Recipe& recipe) const {
    return CostOf(problem_, platform_.topology, recipe).steps;
  }
  void AddFamilies(const Split& split);
  // Returns true if time is up, or if a plan of `steps` is not to be estimated, and a family keeps
  // all requests.
  bool EndsEstimates(int64_t steps);
  bool HasSerial() const {
    return absl::c_any_of(families_, [](const auto& one) { return IsSerial(one->recipe); });
  }
  int64_t CountSteps(const Split& split, const Algorithm& algorithm);
  void AddFamily(const Split& split, const Algorithm& algorithm, int64_t steps);
  // The numbers of pieces, along M or N and along K, in which a family is tried.
  std::vector<std::pair<int, int>> PiecesOf(const Family& family) const;
  // Best estimates first.
  std::vector<Open> Candidates() const;
  // In the order in which they are simulated: the best estimate, the best serial one, the best of
  // each other split (with many ranks also of each algorithm), and at the end more pieces of one
  // split and algorithm than kMostAlike.
  std::vector<Twins> Select() const;
  // Simulates until there are enough, or time is up.
  std::vector<Open> SimulateSelected();
  // Plans and simulates a candidate. Sets its time or its reason to be refused.
  void Simulate(Open& open) const;
  Choice Take(std::vector<Open> simulated) const;
  // Returns the error if no simulated candidate can be taken.
  absl::Status NoPlan(const std::vector<Open>& simulated) const;
  // Returns why the choice ended before all candidates were compared, if it did.
  std::string EndText(size_t simulated) const;
  std::string Why(const Open& best, const std::vector<Open>& all) const;

  const Problem& problem_;
  const Platform& platform_;
  const PlanOptions& asked_;
  const ChooseLimits& limits_;
  Network network_;
  std::vector<std::unique_ptr<Family>> families_;
  absl::Status refusal_;  // of the first of Algorithms() that refused
  const Algorithm* refuses_ = nullptr;
  const int64_t most_steps_;     // to compare
  int64_t estimated_steps_ = 0;  // as a part of most_steps_
  int64_t simulated_steps_ = 0;
  int64_t left_out_ = 0;      // candidates that had too many steps, and their twins
  bool some_alone_ = false;   // only some splits and algorithms are estimated
  bool late_ = false;         // time was up
  int64_t fewest_steps_ = 0;  // of the plans that have too many
};

absl::StatusOr<std::vector<Split>> Chooser::SplitsToTry() const {
  if (!HasProduct(problem_)) return std::vector<Split>{Split{}};
  if (!asked_.split.empty()) {
    AGMM_ASSIGN_OR_RETURN(const Split split, ParseSplit(problem_, asked_.split));
    return std::vector<Split>{split};
  }
  std::vector<std::pair<SplitBound, Split>> bounds;
  for (const Split& split : Splits(problem_)) {
    // A different order of sums is taken only if it is asked for.
    if (KeepsK(problem_) && !SummedAxes(problem_, split).empty()) continue;
    if (!CheckSplit(problem_, split).ok()) continue;
    bounds.emplace_back(BoundOf(problem_, platform_, split), split);
  }
  absl::c_stable_sort(bounds, [](const auto& x, const auto& y) {
    const auto key = [](const SplitBound& bound) {
      return std::pair(bound.time_ns(), bound.comm_ns + bound.compute_ns);
    };
    return key(x.first) < key(y.first);
  });
  std::vector<Split> splits;
  std::vector<std::vector<Ranges>> works;  // splits that divide the work alike are one
  for (const auto& [bound, split] : bounds) {
    if (splits.size() == kMostSplits) break;
    std::vector<Ranges> parts = WorkOf(problem_, split).parts;
    if (absl::c_linear_search(works, parts)) continue;
    works.push_back(std::move(parts));
    splits.push_back(split);
  }
  return splits;
}

// Before its estimate, which may take seconds for a plan that is too large.
int64_t Chooser::CountSteps(const Split& split, const Algorithm& algorithm) {
  Recipe counted;
  counted.algorithm = &algorithm;
  counted.split = split;
  counted.chunks = std::max(asked_.chunks, 1);
  counted.k_chunks = std::max(asked_.k_chunks, 1);
  if (algorithm.arrivals == Arrivals::kContiguous) counted.chunks = counted.k_chunks = 1;
  counted.partials = asked_.partials;
  const int64_t steps = StepsOf(counted);
  estimated_steps_ += std::min(steps, limits_.steps) / kCountedPerStep;
  return steps;
}

void Chooser::AddFamily(const Split& split, const Algorithm& algorithm, int64_t steps) {
  estimated_steps_ += steps / kEstimatedPerStep;
  PlanOptions options = asked_;
  options.algorithm = algorithm.name;
  options.split = HasProduct(problem_) ? SplitText(problem_, split) : "";
  options.chunks = std::max(asked_.chunks, 1);
  options.k_chunks = std::max(asked_.k_chunks, 1);
  const absl::StatusOr<ResolvedOptions> resolved =
      ResolveOptions(problem_, platform_.topology, options);
  if (!resolved.ok()) {
    if (refusal_.ok() || &algorithm < refuses_) {
      refusal_ = resolved.status();
      refuses_ = &algorithm;
    }
    return;
  }
  auto family = std::make_unique<Family>();
  family->recipe = resolved->recipe;
  family->steps = steps;
  family->not_kept = resolved->why;
  family->dropped = static_cast<int>(DroppedFrom(asked_, resolved->recipe).size());
  family->estimate.emplace(problem_, platform_, split, algorithm, resolved->recipe.partials,
                           &network_);
  family->travels = family->estimate->travels();
  families_.push_back(std::move(family));
}

bool Chooser::EndsEstimates(int64_t steps) {
  if (absl::c_none_of(families_, [](const auto& family) { return family->dropped == 0; }))
    return false;
  late_ = late_ || limits_.out_of_time();
  const bool ends = static_cast<double>(estimated_steps_ + steps / kEstimatedPerStep) >
                    kEstimatedPart * static_cast<double>(most_steps_);
  some_alone_ = some_alone_ || ends;
  return late_ || ends;
}

void Chooser::AddFamilies(const Split& split) {
  double hops = 0;  // each is a step, or is read in place by one
  for (const Demand& demand : DemandsOf(problem_, split).list)
    if (demand.travels) hops += CountHops(demand);
  if (hops > static_cast<double>(limits_.steps)) {
    const auto steps = static_cast<int64_t>(std::min(hops, 9e18));
    fewest_steps_ = fewest_steps_ == 0 ? steps : std::min(fewest_steps_, steps);
    return;
  }
  struct Counted {
    const Algorithm* algorithm = nullptr;
    bool contiguous = false;
    int64_t steps = 0;
  };
  std::vector<Counted> all;
  for (const Algorithm& algorithm : Algorithms()) {
    if (asked_.algorithm != "auto" && asked_.algorithm != algorithm.name) continue;
    all.push_back(
        {&algorithm, algorithm.arrivals == Arrivals::kContiguous, CountSteps(split, algorithm)});
  }
  // The fewest steps first, because their estimates take least; serial last, because it keeps the
  // fewest requests.
  absl::c_stable_sort(all, [](const Counted& x, const Counted& y) {
    return std::pair(x.contiguous, x.steps) < std::pair(y.contiguous, y.steps);
  });
  for (const Counted& one : all) {
    if (one.steps > limits_.steps) {
      fewest_steps_ = fewest_steps_ == 0 ? one.steps : std::min(fewest_steps_, one.steps);
      continue;
    }
    const bool is_first_serial = one.contiguous && !HasSerial();
    if (!is_first_serial && EndsEstimates(one.steps)) continue;
    AddFamily(split, *one.algorithm, one.steps);
    // All algorithms make the same plan if nothing travels.
    if (!families_.empty() && families_.back()->recipe.split == split && !families_.back()->travels)
      break;
  }
}

std::vector<std::pair<int, int>> Chooser::PiecesOf(const Family& family) const {
  const Recipe& recipe = family.recipe;
  const RouteEstimate& estimate = *family.estimate;
  std::vector<std::pair<int, int>> pieces = {{recipe.chunks, recipe.k_chunks}};
  const bool asked = asked_.chunks > 0 || asked_.k_chunks > 0;
  if (asked || !family.travels || recipe.algorithm->arrivals == Arrivals::kContiguous)
    return pieces;
  const int64_t most = std::min<int64_t>(
      {kMostPieces, estimate.shard_bytes() / kMinPieceBytes, kMostArrivals / estimate.group()});
  for (int count = 2; count <= std::min(most, estimate.length()); count *= 2)
    pieces.emplace_back(count, 1);
  const int64_t deepest = std::min(most, estimate.depth() / kMinPieceDepth);
  for (int count = 2; estimate.along_k() && count <= deepest; count *= 2)
    pieces.emplace_back(1, count);
  return pieces;
}

std::vector<Open> Chooser::Candidates() const {
  std::vector<Open> all;
  for (const auto& family : families_) {
    for (const auto& [chunks, k_chunks] : PiecesOf(*family)) {
      Open open;
      open.family = family.get();
      open.candidate.recipe = family->recipe;
      open.candidate.recipe.chunks = chunks;
      open.candidate.recipe.k_chunks = k_chunks;
      open.candidate.estimate_ns =
          static_cast<int64_t>(std::llround(family->estimate->TimeNs(chunks, k_chunks)));
      all.push_back(std::move(open));
    }
  }
  absl::c_stable_sort(all, [](const Open& x, const Open& y) {
    return std::pair(x.family->dropped, x.candidate.estimate_ns) <
           std::pair(y.family->dropped, y.candidate.estimate_ns);
  });
  return all;
}

std::vector<Twins> Chooser::Select() const {
  std::vector<Twins> all;
  for (Open& one : Candidates()) {
    const auto twins =
        absl::c_find_if(all, [&](const Twins& other) { return AreTwins(other.front(), one); });
    if (twins == all.end()) {
      all.push_back({std::move(one)});
    } else {
      twins->push_back(std::move(one));
    }
  }
  // Twins and the order of their group.
  std::vector<std::pair<int, Twins>> ordered;
  std::map<const Family*, int> alike;
  std::vector<Split> splits;
  std::set<const Algorithm*> algorithms;
  const bool many_ranks = problem_.mesh.size() > kFewRanks;
  bool has_serial = false;
  const Open best = all.front().front();
  for (Twins& twins : all) {
    const Open& one = twins.front();
    if (IsSerial(one) && has_serial) continue;
    const bool near = one.family->dropped == best.family->dropped &&
                      static_cast<double>(one.candidate.estimate_ns) <=
                          kNear * static_cast<double>(best.candidate.estimate_ns);
    const Recipe& recipe = one.candidate.recipe;
    // With many ranks few candidates are compared, and the estimates of an algorithm err alike.
    const bool is_first = !absl::c_linear_search(splits, recipe.split) ||
                          (many_ranks && !algorithms.contains(recipe.algorithm));
    splits.push_back(recipe.split);
    algorithms.insert(recipe.algorithm);
    const bool room = alike[one.family]++ < kMostAlike;
    const int group = ordered.empty() ? 0 : IsSerial(one) ? 1 : is_first && near ? 2 : room ? 3 : 4;
    has_serial = has_serial || IsSerial(one);
    ordered.emplace_back(group, std::move(twins));
  }
  absl::c_stable_sort(ordered, [](const auto& x, const auto& y) { return x.first < y.first; });
  std::vector<Twins> selected;
  for (auto& [group, twins] : ordered) selected.push_back(std::move(twins));
  return selected;
}

std::vector<Open> Chooser::SimulateSelected() {
  std::vector<Twins> selected = Select();
  const int dropped = selected.front().front().family->dropped;
  const auto most = static_cast<int64_t>(kSimulatedPart * static_cast<double>(most_steps_));
  std::vector<Open> simulated;
  int64_t fastest_ns = 0;      // 0: no candidate can be taken yet
  Twins* its_twins = nullptr;  // those left
  size_t begun = 0, planned = 0;
  // By family: the fewest pieces that have too many steps.
  std::map<const Family*, int> too_many;
  while (planned < kMostSimulated) {
    const bool has_twins = its_twins != nullptr && !its_twins->empty();
    if (begun == selected.size() && !has_twins) break;
    if (fastest_ns > 0 && limits_.out_of_time()) {
      late_ = true;
      break;
    }
    const bool takes_twin = has_twins && (planned >= kMostBeforeTwins || begun == selected.size());
    Twins& from = takes_twin ? *its_twins : selected[begun++];
    Open open = std::move(from.front());
    from.pop_front();
    const int pieces = open.candidate.recipe.chunks * open.candidate.recipe.k_chunks;
    const auto refused = too_many.find(open.family);
    if (refused != too_many.end() && pieces >= refused->second) continue;
    // The first one, and the fastest serial one, are always simulated.
    const bool is_needed =
        simulated.empty() || (IsSerial(open) && absl::c_none_of(simulated, [](const Open& one) {
                                return IsSerial(one);
                              }));
    const int64_t left = (fastest_ns > 0 ? most : most * kLongerWithoutOne) - simulated_steps_;
    const bool fits = open.family->steps <= left;
    open.steps = is_needed || fits ? StepsOf(open.candidate.recipe) : open.family->steps;
    if (open.steps <= limits_.steps) {
      if (!is_needed && open.steps > left) {
        left_out_ += 1 + static_cast<int64_t>(from.size());
        continue;
      }
      simulated_steps_ += open.steps;
      ++planned;
    } else {
      too_many[open.family] = pieces;
    }
    Simulate(open);
    if (open.candidate.refused.empty() && open.family->dropped == dropped &&
        (fastest_ns == 0 || open.candidate.time_ns < fastest_ns)) {
      fastest_ns = open.candidate.time_ns;
      its_twins = &from;
    }
    simulated.push_back(std::move(open));
  }
  return simulated;
}

void Chooser::Simulate(Open& open) const {
  PlanCandidate& candidate = open.candidate;
  if (open.steps > limits_.steps) {
    candidate.refused = absl::StrFormat("has %d steps, more than %d", open.steps, limits_.steps);
    return;
  }
  const absl::StatusOr<Schedule> schedule =
      PlanWith(problem_, platform_.topology, candidate.recipe);
  if (!schedule.ok()) {
    candidate.refused = std::string(schedule.status().message());
    return;
  }
  candidate.workspace_bytes = schedule->workspace_bytes;
  if (const int64_t all = StepCount(*schedule); all > limits_.steps) {
    candidate.refused = absl::StrFormat("has %d steps, more than %d", all, limits_.steps);
    return;
  }
  const absl::StatusOr<Simulation> simulation = agmm::Simulate(problem_, platform_, *schedule);
  if (!simulation.ok()) {
    candidate.refused = std::string(simulation.status().message());
    return;
  }
  candidate.time_ns = simulation->time_ns;
  if (candidate.workspace_bytes > limits_.workspace_bytes) {
    candidate.refused = absl::StrFormat("does not fit: it needs %s of workspace, and %s are free",
                                        FormatBytes(candidate.workspace_bytes),
                                        FormatBytes(limits_.workspace_bytes));
  }
}

std::string Chooser::Why(const Open& best, const std::vector<Open>& all) const {
  const Recipe& taken = best.candidate.recipe;
  if (!best.family->travels)
    return absl::StrCat("nothing has to move with any algorithm; predicted ",
                        Text(best.candidate.time_ns));
  std::vector<std::string> parts = {absl::StrFormat(
      "auto takes %s: predicted %s", RecipeText(problem_, taken, asked_.split.empty()),
      Text(best.candidate.time_ns))};
  std::set<std::string> named = {taken.algorithm->name};
  bool has_next = false;
  for (const Open& one : all) {
    const Recipe& recipe = one.candidate.recipe;
    if (named.count(recipe.algorithm->name) > 0) continue;
    if (!one.candidate.refused.empty()) {
      if (one.candidate.time_ns > 0 && one.candidate.time_ns >= best.candidate.time_ns) continue;
      named.insert(recipe.algorithm->name);
      parts.push_back(
          absl::StrCat(RecipeText(problem_, recipe, false), " ", one.candidate.refused));
    } else if (!has_next && one.family->dropped == best.family->dropped &&
               one.candidate.time_ns >= best.candidate.time_ns) {
      has_next = true;
      named.insert(recipe.algorithm->name);
      parts.push_back(absl::StrCat("next ", RecipeText(problem_, recipe, false), " ",
                                   Text(one.candidate.time_ns)));
    }
  }
  const auto serial = absl::c_find_if(all, [](const Open& one) { return IsSerial(one); });
  if (serial != all.end() && !named.contains("serial") && serial->candidate.time_ns > 0) {
    parts.push_back(absl::StrCat("serial ", Text(serial->candidate.time_ns)));
    // A faster plan that was not allowed must not look like an alternative.
    if (serial->family->dropped > best.family->dropped) {
      absl::StrAppend(&parts.back(), ", which ignores ",
                      absl::StrJoin(DroppedFrom(asked_, serial->candidate.recipe), " and "));
    }
  }
  const std::string hidden = best.family->estimate->HiddenText(problem_);
  if (!IsSerial(best) && !hidden.empty()) parts.push_back(hidden);
  parts.push_back(LabelOf(platform_.machine));
  return absl::StrJoin(parts, "; ");
}

std::string Chooser::EndText(size_t simulated) const {
  const std::string candidates = Counted(static_cast<int64_t>(simulated), "candidate");
  if (late_) return absl::StrCat("time was up after ", candidates);
  const bool ended = left_out_ > 0 && simulated < kMostSimulated;
  if (!ended && !some_alone_) return "";
  return absl::StrFormat("compared %s%s within %s", candidates,
                         some_alone_ ? " of some splits and algorithms" : "",
                         Counted(most_steps_, "step"));
}

absl::Status Chooser::NoPlan(const std::vector<Open>& simulated) const {
  const std::string untried =
      left_out_ == 0
          ? ""
          : absl::StrFormat("; %s beyond the steps of a choice %s not tried",
                            Counted(left_out_, "candidate"), left_out_ == 1 ? "was" : "were");
  const PlanCandidate& first = simulated.front().candidate;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "no plan of %s is within the limits: %s %s%s; ask for fewer pieces, gather along a smaller "
      "axis, or use a smaller mesh",
      ToString(problem_), RecipeText(problem_, first.recipe, true), first.refused, untried));
}

Choice Chooser::Take(std::vector<Open> simulated) const {
  const auto key = [](const Open& one) {
    return std::tuple(!one.candidate.refused.empty(), one.family->dropped, one.candidate.time_ns);
  };
  absl::c_stable_sort(simulated, [&](const Open& x, const Open& y) { return key(x) < key(y); });
  const Open* best = &simulated.front();
  for (const Open& one : simulated) {
    if (!one.candidate.refused.empty() || one.family->dropped > best->family->dropped) break;
    if (static_cast<double>(one.candidate.time_ns) <=
            static_cast<double>(simulated.front().candidate.time_ns) * (1 + kAlike) &&
        one.steps < best->steps)
      best = &one;
  }
  Choice choice;
  choice.recipe = best->candidate.recipe;
  choice.time_ns = best->candidate.time_ns;
  choice.compared_steps = estimated_steps_ + simulated_steps_;
  std::vector<std::string> why;
  if (asked_.algorithm == "auto") why.push_back(Why(*best, simulated));
  if (!best->family->not_kept.empty()) why.push_back(best->family->not_kept);
  if (asked_.algorithm == "auto") {
    const auto has_time = [](const Open& one) { return one.candidate.time_ns > 0; };
    const auto compared = static_cast<size_t>(absl::c_count_if(simulated, has_time));
    if (const std::string end = EndText(compared); !end.empty()) why.push_back(end);
  }
  choice.why = absl::StrJoin(why, "; ");
  for (const Open& one : simulated) {
    if (one.candidate.recipe.algorithm->name == "serial" && one.candidate.time_ns > 0 &&
        choice.serial_ns == 0)
      choice.serial_ns = one.candidate.time_ns;
    choice.candidates.push_back(one.candidate);
  }
  return choice;
}

absl::StatusOr<Choice> Chooser::Run() {
  AGMM_ASSIGN_OR_RETURN(const std::vector<Split> splits, SplitsToTry());
  for (const Split& split : splits) {
    if (&split != &splits.front() && EndsEstimates(0)) break;
    AddFamilies(split);
  }
  if (families_.empty()) {
    if (fewest_steps_ == 0 && !refusal_.ok()) return refusal_;
    return absl::ResourceExhaustedError(absl::StrFormat(
        "every plan of %s has at least %d steps, and at most %d can be planned; gather along a "
        "smaller axis, or use a smaller mesh",
        ToString(problem_), fewest_steps_, limits_.steps));
  }
  std::vector<Open> simulated = SimulateSelected();
  const int dropped = simulated.front().family->dropped;
  const bool any = absl::c_any_of(simulated, [&](const Open& one) {
    return one.candidate.refused.empty() && one.family->dropped == dropped;
  });
  if (any) return Take(std::move(simulated));
  const bool too_large = absl::c_any_of(simulated, [&](const Open& one) {
    return one.candidate.workspace_bytes > limits_.workspace_bytes;
  });
  if (too_large && asked_.workspace_shards == 0) {
    PlanOptions bounded = asked_;
    bounded.workspace_shards = kFewestShards;
    absl::StatusOr<Choice> choice = Chooser(problem_, platform_, bounded, limits_).Run();
    if (choice.ok() && choice->recipe.workspace_shards > 0) {
      choice->compared_steps += estimated_steps_ + simulated_steps_;
      absl::StrAppend(&choice->why, choice->why.empty() ? "" : "; ", "with a workspace of ",
                      kFewestShards, " shards, because one for all does not fit into ",
                      FormatBytes(limits_.workspace_bytes));
      return choice;
    }
  }
  return NoPlan(simulated);
}

}  // namespace

int64_t ComparedStepsFor(int ranks) {
  // Measured on a busy host (AMD EPYC): 20,000 steps take up to 110 ms of a core, and 200,000 a
  // second.
  return ranks <= kFewRanks ? 20000 : 200000;
}

std::string RecipeText(const Problem& problem, const Recipe& recipe, bool with_split) {
  std::string text = recipe.algorithm->name;
  if (recipe.chunks > 1) absl::StrAppend(&text, " in ", recipe.chunks, " chunks");
  if (recipe.k_chunks > 1) absl::StrAppend(&text, " in ", recipe.k_chunks, " chunks along K");
  if (with_split && HasProduct(problem))
    absl::StrAppend(&text, ", split ", SplitText(problem, recipe.split));
  return text;
}

std::string LabelOf(const Machine& machine) {
  return absl::StrCat("machine ", machine.name,
                      machine.version > 0 ? absl::StrCat(" ", machine.version) : "");
}

absl::StatusOr<Choice> Choose(const Problem& problem, const Platform& platform,
                              const PlanOptions& asked, const ChooseLimits& limits) {
  AGMM_RETURN_IF_ERROR(CheckTopology(problem, platform.topology));
  AGMM_RETURN_IF_ERROR(CheckPlaces(platform));
  AGMM_RETURN_IF_ERROR(CheckOptions(problem, asked));
  ChooseLimits within = limits;
  if (const int64_t heap = platform.machine.heap_bytes; heap > 0)
    within.workspace_bytes = std::min(within.workspace_bytes, heap);
  return Chooser(problem, platform, asked, within).Run();
}

}  // namespace agmm
