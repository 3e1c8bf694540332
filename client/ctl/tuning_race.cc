#include "client/ctl/tuning_race.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "client/ctl/matmul_figures.h"
#include "kernels/base/reason.h"

namespace agmm {
namespace {

constexpr double kTurnMs = 50;
// The epochs of one turn. A prediction may be wrong, so the first turn is short; a job reports its
// last 64 epochs.
constexpr double kFirstEpochs = 8, kMostEpochs = 64, kFewestEpochs = 2;
// A contender that is slower than the best by more than this factor drops out.
constexpr double kClearlySlower = 1.1;
constexpr size_t kFewestContenders = 2;
// Times of plans that are equally fast differ by less than this factor.
constexpr double kAsFast = 1.03;

double TimeOf(const Contender& contender) {
  return contender.MeasuredMs().value_or(std::numeric_limits<double>::infinity());
}

// The contenders that can run, the fastest first. Also ones that dropped out, because the others
// may turn out to be as slow.
std::vector<int> Ranking(const TuningRace& race) {
  std::vector<int> ranking;
  for (int i = 0; i < static_cast<int>(race.contenders.size()); ++i)
    if (race.contenders[i].refused.empty()) ranking.push_back(i);
  std::stable_sort(ranking.begin(), ranking.end(), [&](int x, int y) {
    return TimeOf(race.contenders[x]) < TimeOf(race.contenders[y]);
  });
  return ranking;
}

bool IsNoisy(const Contender& contender) { return BusySign(contender.runs_ms, "runs").has_value(); }

}  // namespace

std::optional<double> Contender::MeasuredMs() const { return Median(runs_ms); }

bool DoesNotFit(const absl::Status& error) {
  const std::string reason = ReasonOf(error);
  return absl::IsResourceExhausted(error) && reason != kReasonQuotaFull &&
         reason != kReasonTransfersFull;
}

bool IsOfPlan(const absl::Status& error) {
  return DoesNotFit(error) || absl::IsInvalidArgument(error) || absl::IsUnimplemented(error);
}

TuningRace RaceOf(const Problem& problem, const Choice& choice) {
  TuningRace race;
  for (const PlanCandidate& candidate : choice.candidates) {
    if (!candidate.refused.empty()) continue;
    const int index = static_cast<int>(race.contenders.size());
    if (candidate.recipe == choice.recipe) race.predicted = index;
    if (candidate.recipe.algorithm->arrivals == Arrivals::kContiguous && !race.serial)
      race.serial = index;
    Contender contender;
    contender.options = OptionsOf(problem, candidate.recipe);
    contender.predicted_ms = static_cast<double>(candidate.time_ns) * 1e-6;
    contender.workspace_bytes = candidate.workspace_bytes;
    race.contenders.push_back(std::move(contender));
  }
  return race;
}

int EpochsOf(const Contender& contender) {
  const double time_ms = contender.MeasuredMs().value_or(contender.predicted_ms);
  const double most = contender.runs_ms.empty() ? kFirstEpochs : kMostEpochs;
  if (time_ms <= 0) return static_cast<int>(most);
  return static_cast<int>(std::clamp(1 + std::ceil(kTurnMs / time_ms), kFewestEpochs, most));
}

double FirstRoundMs(const TuningRace& race) {
  double sum_ms = 0;
  for (const Contender& contender : race.contenders) {
    if (contender.races()) sum_ms += contender.predicted_ms * EpochsOf(contender);
  }
  return sum_ms;
}

void DropSlow(TuningRace* race) {
  const std::vector<int> ranking = Ranking(*race);
  for (size_t place = 0; place < ranking.size(); ++place) {
    const int index = ranking[place];
    Contender& contender = race->contenders[index];
    contender.dropped =
        place >= kFewestContenders && index != race->predicted && index != race->serial &&
        TimeOf(contender) > TimeOf(race->contenders[ranking.front()]) * kClearlySlower;
  }
}

Outcome OutcomeOf(const TuningRace& race) {
  const Contender& predicted = race.contenders[race.predicted];
  const std::vector<int> ranking = Ranking(race);
  Outcome outcome{ranking.empty() ? race.predicted : ranking.front()};
  const Contender& best = race.contenders[outcome.winner];
  if (TimeOf(predicted) <= TimeOf(best) * kAsFast) {
    outcome.winner = race.predicted;
    return outcome;
  }
  const double spread =
      std::max(SpreadOf(best.runs_ms).value_or(0), SpreadOf(predicted.runs_ms).value_or(0));
  if ((IsNoisy(best) || IsNoisy(predicted)) && TimeOf(best) > TimeOf(predicted) * (1 - spread)) {
    outcome.not_stored = absl::StrFormat(
        "runs differ by %.0f %%; use more --rounds and --budget, or a quieter host", 100 * spread);
  }
  return outcome;
}

}  // namespace agmm
