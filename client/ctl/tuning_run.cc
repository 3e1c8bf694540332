#include "client/ctl/tuning_run.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/ctl/matmul_figures.h"
#include "client/ctl/measurement.h"
#include "client/ctl/product.h"
#include "client/ctl/report.h"
#include "client/ctl/terminal_line.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/predict/tuning.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/machine_messages.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/tuning_messages.h"

namespace agmm {
namespace {

absl::StatusOr<Machine> MeasuredMachine(Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(v1::MachineStatus status, connection->GetMachine());
  if (!status.world().has_measure_time()) {
    AGMM_ASSIGN_OR_RETURN(status, AwaitMeasurement(connection, kMeasureTimeout));
  }
  return FromProto(status.world().machine());
}

// The smallest heap of the mesh's ranks: the most that a plan's workspace can take.
int64_t HeapBytes(const Site& site) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const v1::NodeStatus& node : site.status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      if (TakesPart(site.mesh, device)) least = std::min(least, device.heap_bytes());
    }
  }
  return least;
}

// Rounds up to a time that a person would write: "30s", "1m40s".
std::string BudgetFor(double ms) {
  const double seconds = std::ceil(ms * 1e-3);
  return absl::FormatDuration(
      absl::Seconds(seconds <= 20 ? seconds : std::ceil(seconds / 10) * 10));
}

// Returns `plan` with the hardware and the links that the sequencer has added.
v1::TunedPlan StoredIn(const v1::TuningStatus& table, const v1::TunedPlan& plan) {
  const auto is_it = [&](v1::TunedPlan stored) {
    stored.set_hardware(plan.hardware());
    stored.set_between_gb_per_s(plan.between_gb_per_s());
    return google::protobuf::util::MessageDifferencer::Equals(stored, plan);
  };
  const auto found = absl::c_find_if(table.plans(), is_it);
  return found == table.plans().end() ? plan : *found;
}

class TuningRun {
 public:
  TuningRun(Connection* connection, const TuneRequest& request, const OnTuned& on_done)
      : connection_(connection), request_(request), on_done_(on_done) {}

  absl::Status Run() {
    AGMM_ASSIGN_OR_RETURN(const Site site, FindSite(connection_, request_.mesh));
    // A daemon that cannot store plans says so before anything is measured.
    AGMM_RETURN_IF_ERROR(connection_->GetTuning().status());
    AGMM_ASSIGN_OR_RETURN(machine_, MeasuredMachine(connection_));
    AGMM_RETURN_IF_ERROR(FindCandidates(site));
    AGMM_ASSIGN_OR_RETURN(session_, connection_->OpenSession("agmmctl tune"));
    budget_ = Deadline::After(request_.budget);
    bool any = false;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      case_ = absl::StrFormat("%d of %d  %s", i + 1, shapes_.size(), shapes_[i].name);
      share_ = Deadline::After(budget_.Left() / static_cast<int64_t>(shapes_.size() - i));
      AGMM_RETURN_IF_ERROR(TuneShape(&shapes_[i]));
      any |= shapes_[i].skipped.empty();
      line_.Print([&] { on_done_(shapes_[i], line_.IsShown()); });
    }
    if (any) return absl::OkStatus();
    // The result of each shape has the reason.
    return absl::ResourceExhaustedError("no shape fits; choose smaller ones or a larger --scale");
  }

 private:
  // Chooses the candidates of all shapes, so that a mistake is reported before anything runs.
  absl::Status FindCandidates(const Site& site) {
    std::vector<BenchShape> shapes = request_.shapes;
    if (request_.suite) {
      for (BenchShape& shape : SuiteOf(site.status, site.mesh.size(), request_.scale, /*all=*/true,
                                       /*sums=*/request_.spec == kDefaultSpec))
        shapes.push_back(std::move(shape));
    }
    ChooseLimits limits;
    limits.workspace_bytes = HeapBytes(site);
    double round_ms = 0;
    for (const BenchShape& shape : shapes) {
      Show(absl::StrCat("choosing plans for ", shape.name));
      TunedShape one;
      one.name = shape.name;
      one.spec = shape.spec.empty() ? request_.spec : shape.spec;
      AGMM_ASSIGN_OR_RETURN(one.problem,
                            ParseProblem(one.spec, site.mesh, shape.shape, request_.dtype));
      const absl::StatusOr<Choice> choice =
          Choose(one.problem, {machine_, site.topology, {}}, PlanOptions(), limits);
      if (choice.ok()) {
        one.race = RaceOf(one.problem, *choice);
        round_ms += FirstRoundMs(one.race);
      } else if (absl::IsResourceExhausted(choice.status())) {
        one.skipped = std::string(choice.status().message());
      } else {
        return choice.status();
      }
      shapes_.push_back(std::move(one));
    }
    if (round_ms <= absl::ToDoubleMilliseconds(request_.budget)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "--budget %s is too short: one round of the plans of %s takes about %s; give at least "
        "--budget %s, or fewer shapes",
        absl::FormatDuration(request_.budget), Counted(shapes_.size(), "shape"),
        FormatMicros(round_ms * 1e3), BudgetFor(round_ms)));
  }

  // Errors that are of this shape alone make it a skipped one.
  absl::Status TuneShape(TunedShape* one) {
    if (!one->skipped.empty()) return absl::OkStatus();
    AGMM_ASSIGN_OR_RETURN(const Site site, FindSite(connection_, request_.mesh));
    ProductRun product(connection_, session_, one->spec, one->problem, request_.timeout,
                       /*ignore_tuning=*/true);
    absl::Status status = CheckContenders(site, one);
    if (status.ok()) status = Race(&product, one);
    if (DoesNotFit(status)) one->skipped = std::string(status.message());
    AGMM_RETURN_IF_ERROR(DoesNotFit(status) ? absl::OkStatus() : status);
    AGMM_RETURN_IF_ERROR(product.Delete());
    return one->is_stored() ? Store(site, one) : absl::OkStatus();
  }

  // Refuses the contenders whose workspaces do not fit beside the tensors.
  static absl::Status CheckContenders(const Site& site, TunedShape* one) {
    for (Contender& contender : one->race.contenders) {
      const absl::Status room = CheckRoom(site, one->problem, contender.workspace_bytes);
      if (!room.ok()) contender.refused = std::string(room.message());
    }
    return OutcomeOfPredicted(one->race);
  }

  // Without the choice of `auto`, there is nothing to compare with.
  static absl::Status OutcomeOfPredicted(const TuningRace& race) {
    const Contender& predicted = race.contenders[race.predicted];
    if (predicted.refused.empty()) return absl::OkStatus();
    return absl::ResourceExhaustedError(predicted.refused);
  }

  absl::Status Race(ProductRun* product, TunedShape* one) {
    Show("making the operands");
    AGMM_RETURN_IF_ERROR(product->Create());
    AGMM_RETURN_IF_ERROR(product->FillInputs());
    for (int round = 0; round < request_.rounds; ++round) {
      AGMM_ASSIGN_OR_RETURN(const bool in_time, RunRound(product, round, one));
      AGMM_RETURN_IF_ERROR(OutcomeOfPredicted(one->race));
      if (!in_time) break;
      DropSlow(&one->race);
    }
    one->outcome = OutcomeOf(one->race);
    return absl::OkStatus();
  }

  // Returns false if time is up. The first round may take the time of later shapes.
  absl::StatusOr<bool> RunRound(ProductRun* product, int round, TunedShape* one) {
    std::vector<Contender>& contenders = one->race.contenders;
    const size_t count = contenders.size();
    // Each round begins with another plan, so that none always runs after the same one.
    for (size_t turn = 0; turn < count; ++turn) {
      Contender& contender = contenders[(round + turn) % count];
      if (!contender.races()) continue;
      if (round == 0 && budget_.HasPassed()) return TooShort(*one, turn);
      if (round > 0 && share_.HasPassed()) return false;
      Show(absl::StrFormat("round %d of %d  %s  %s", round + 1, request_.rounds,
                           contender.options.algorithm,
                           TimeLeft(std::max(0.0, absl::ToDoubleSeconds(budget_.Left())))));
      const absl::Duration left = budget_.Left();
      const absl::StatusOr<v1::Job> job = product->Run(contender.options, EpochsOf(contender));
      if (round == 0) {
        first_rounds_ms_ += absl::ToDoubleMilliseconds(left - budget_.Left());
        ++first_turns_;
      }
      if (IsOfPlan(job.status())) {
        contender.refused = std::string(job.status().message());
        continue;
      }
      AGMM_RETURN_IF_ERROR(job.status());
      for (double ms : AfterWarmUp(SlowestRankMs(*job, one->problem.mesh)))
        contender.runs_ms.push_back(ms);
      ++contender.rounds;
    }
    return true;
  }

  absl::Status TooShort(const TunedShape& one, size_t turns) const {
    size_t all_turns = 0;
    for (const TunedShape& shape : shapes_) all_turns += shape.race.contenders.size();
    const double turn_ms =
        first_rounds_ms_ / static_cast<double>(std::max<size_t>(first_turns_, 1));
    return absl::DeadlineExceededError(absl::StrFormat(
        "--budget %s ended in the first round of %s, after %d of %s; give at least --budget %s, or "
        "fewer shapes",
        absl::FormatDuration(request_.budget), one.name, turns,
        Counted(one.race.contenders.size(), "plan"),
        BudgetFor(turn_ms * static_cast<double>(all_turns))));
  }

  absl::Status Store(const Site& site, TunedShape* one) {
    const Contender& winner = one->race.contenders[one->outcome.winner];
    TunedPlan plan;
    plan.key = TuningKeyOf(one->problem, site.topology, machine_, /*hardware=*/"");
    plan.options = winner.options;
    plan.time_us = winner.MeasuredMs().value_or(0) * 1e3;
    if (one->race.serial)
      plan.serial_us = one->race.contenders[*one->race.serial].MeasuredMs().value_or(0) * 1e3;
    plan.date = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
    v1::StoreTuningRequest request;
    *request.add_plans() = ToProto(plan);
    *request.mutable_ranks() = {one->problem.mesh.ranks.begin(), one->problem.mesh.ranks.end()};
    AGMM_ASSIGN_OR_RETURN(const v1::TuningStatus table, connection_->StoreTuning(request));
    one->stored = StoredIn(table, request.plans(0));
    return absl::OkStatus();
  }

  void Show(const std::string& what) {
    line_.Update([&] { shown_ = case_.empty() ? what : absl::StrCat(case_, "  ", what); });
  }

  Connection* const connection_;
  const TuneRequest& request_;
  const OnTuned& on_done_;
  Machine machine_;
  std::vector<TunedShape> shapes_;
  Deadline budget_, share_;  // of all shapes, and of the one that runs
  // The time of all jobs of first rounds so far, and their number.
  double first_rounds_ms_ = 0;
  size_t first_turns_ = 0;
  std::string session_, case_, shown_;
  TerminalLine line_{[this](absl::Duration) { return shown_; }};  // last: its thread reads shown_
};

}  // namespace

absl::Status Tune(Connection* connection, const TuneRequest& request, const OnTuned& on_done) {
  return TuningRun(connection, request, on_done).Run();
}

}  // namespace agmm
