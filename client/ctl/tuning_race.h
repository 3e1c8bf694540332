// A race of plans of one problem: they run in turn, round by round, and slow ones drop out. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/predict/choose.h"
#include "kernels/schedule/plan.h"

namespace agmm {

struct Contender {
  PlanOptions options;  // none is left to be chosen
  double predicted_ms = 0;
  int64_t workspace_bytes = 0;
  std::vector<double> runs_ms;  // times of epochs, without warm-ups
  int rounds = 0;               // in which it has run
  bool dropped = false;         // because it was slow
  std::string refused;          // the reason why it cannot run

  bool races() const { return !dropped && refused.empty(); }
  // Median of its runs; absent without any.
  std::optional<double> MeasuredMs() const;
};

struct TuningRace {
  std::vector<Contender> contenders;  // as predicted, the fastest first
  int predicted = 0;                  // the choice of `auto`
  std::optional<int> serial;          // the unfused plan
};

// Returns true for the error of a job that other plans of its problem may not have: this one does
// not fit, or cannot be run. False if the daemons cannot take any job at present.
bool IsOfPlan(const absl::Status& error);
// Returns true for an error that says what does not fit. Others may fit.
bool DoesNotFit(const absl::Status& error);

// The candidates of `choice` that are not refused.
TuningRace RaceOf(const Problem& problem, const Choice& choice);

// The epochs of a contender's next job, the first of which warms up: enough for about 50 ms, but at
// least 2.
int EpochsOf(const Contender& contender);
// The predicted time of the first round.
double FirstRoundMs(const TuningRace& race);

// Drops the contenders whose time is more than 10 % above the best one's, and takes the others back
// into the race. The choice of `auto` and the unfused plan stay, and at least two contenders.
void DropSlow(TuningRace* race);

struct Outcome {
  int winner = 0;          // of the contenders
  std::string not_stored;  // the reason if its plan is not worth storing
};
// The winner is the fastest contender in the median, or the choice of `auto` if it is at most 3 %
// slower. Its plan is not stored if runs differ too much (BusySign) to tell it from the choice of
// `auto`. The choice of `auto` must have run.
Outcome OutcomeOf(const TuningRace& race);

}  // namespace agmm
