// agmmctl simulate: predicts the time of plans on a machine, without a daemon.

#include <CLI/App.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/machine_flags.h"
#include "client/ctl/problem_flags.h"
#include "client/ctl/seed_table.h"
#include "client/ctl/simulated_plans.h"
#include "client/ctl/simulation_json.h"
#include "client/ctl/simulation_text.h"
#include "client/ctl/simulation_trace.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/trace_file.h"
#include "client/ctl/tuning_flags.h"
#include "client/ctl/verbs.h"
#include "kernels/base/status.h"
#include "kernels/base/utf8.h"

namespace agmm {
namespace {

struct SimulateFlags {
  ProblemFlags of;
  MachineFlags machine;
  TuningFlags tuning;
  std::string trace;
  bool seeds = false;
};

bool IsComparison(const SimulateFlags& flags) { return flags.of.options.algorithm == "auto"; }

absl::StatusOr<SimulatedPlans> SimulatePlans(const SimulateFlags& flags, const Problem& problem,
                                             const Platform& platform, const TunedPlans* tuned) {
  std::string algorithm = flags.of.options.algorithm;
  TerminalLine line([&](absl::Duration elapsed) -> std::string {
    if (elapsed < absl::Seconds(1)) return "";
    return absl::StrFormat("simulating %s  %s", algorithm,
                           absl::FormatDuration(absl::Floor(elapsed, absl::Seconds(1))));
  });
  PlanSimulator simulator(problem, platform, tuned);
  if (IsComparison(flags)) {
    return simulator.SimulateAll(
        flags.of.options, [&](const std::string& next) { line.Update([&] { algorithm = next; }); });
  }
  SimulatedPlans plans;
  AGMM_ASSIGN_OR_RETURN(SimulatedPlan plan, simulator.Simulate(flags.of.options));
  if (plan.refused.empty()) plans.taken = plan;
  plans.plans.push_back(std::move(plan));  // a plan that is refused may have millions of steps
  return plans;
}

void PrintSkipped(const TunedPlans& tuned) {
  for (const std::string& entry : tuned.skipped)
    std::cerr << "warning: a tuned plan is not used: " << Printable(entry) << "\n";
}

absl::Status RunSimulate(const SimulateFlags& flags, const Options& options) {
  if (flags.seeds) {
    AGMM_ASSIGN_OR_RETURN(const std::vector<SeedRow> rows, AllSeedRows());
    PrintResult(options, SeedJson(rows), SeedText(rows));
    return absl::OkStatus();
  }
  for (const auto& [value, name] :
       {std::pair{&flags.of.shape, "--shape"}, {&flags.of.mesh, "--mesh"}}) {
    if (!value->empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is required; only --seeds needs no problem"));
  }
  if (!flags.tuning.file.empty() && !IsComparison(flags)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--tuning has no effect beside --algorithm %s, because tuned plans are for "
                        "auto alone; leave out one of them",
                        flags.of.options.algorithm));
  }
  AGMM_ASSIGN_OR_RETURN(const Problem problem, ProblemOf(flags.of));
  AGMM_ASSIGN_OR_RETURN(Machine machine, MachineOf(flags.machine));
  AGMM_ASSIGN_OR_RETURN(const Platform platform,
                        PlatformOf(flags.machine, flags.of, problem.mesh, std::move(machine)));
  AGMM_ASSIGN_OR_RETURN(const std::optional<TunedPlans> tuned, TunedPlansOf(flags.tuning));
  // With JSON, fields have these texts and the note below instead, because stderr is for errors
  // only.
  if (tuned.has_value() && !options.json) PrintSkipped(*tuned);
  AGMM_ASSIGN_OR_RETURN(SimulatedPlans all, SimulatePlans(flags, problem, platform,
                                                          tuned.has_value() ? &*tuned : nullptr));
  if (tuned.has_value()) all.tuning_skipped = tuned->skipped;
  const SimulatedPlan& best = all.plans.front();
  if (!best.refused.empty() && !options.json)
    std::cerr << "note: daemons would refuse this plan: " << best.refused << "\n";
  std::string text = IsComparison(flags) ? ComparisonText(problem, platform, all)
                                         : SimulationText(problem, platform, best);
  if (!flags.trace.empty()) {
    AGMM_ASSIGN_OR_RETURN(const int64_t steps,
                          WriteTrace(flags.trace, TraceOf(problem, platform.topology, best.schedule,
                                                          best.simulation, platform.machine.name)));
    absl::StrAppend(&text, "\n", TraceFileText(flags.trace, steps));
  }
  PrintResult(options, SimulationJson(problem, platform, all), text, flags.trace);
  return absl::OkStatus();
}

}  // namespace

void AddSimulate(CLI::App* app, Command* command) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* verb =
      app->add_subcommand("simulate", "Predict the time of plans on a machine, without a daemon");
  AddProblemFlags(verb, "those of the machine", &flags->of);
  AddMachineFlags(verb, &flags->machine);
  AddTuningFlags(verb, &flags->tuning);
  verb->add_option("--trace", flags->trace,
                   "Also write the steps of the plan, or of the fastest one, to a JSON file for "
                   "Perfetto");
  // RunSimulate checks them.
  for (const char* option : {"--shape", "--mesh"}) verb->get_option(option)->required(false);
  const CLI::Option* seeds = verb->add_flag(
      "--seeds", flags->seeds,
      "Instead print published figures beside ours, with the reasons for differences");
  command->conflicts.AddAllBut({}, seeds, verb);
  verb->footer(
      "Without --algorithm, every algorithm that can plan the problem is simulated, and the "
      "fastest comes first.");
  OnVerb(verb, command, flags, RunSimulate);
}

}  // namespace agmm
