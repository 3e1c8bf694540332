// The race of plans of agmmctl tune, and its output.
#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/table.h"
#include "client/ctl/tuning_flags.h"
#include "client/ctl/tuning_race.h"
#include "client/ctl/tuning_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/machine_text.h"
#include "proto/convert/tuning_text.h"
#include "tests/client/messages_fixture.h"
#include "tests/support/temp_folder.h"
#include "tests/support/widest.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Problem SomeProblem() {
  return *ParseProblem(kDefaultSpec, *ParseMesh("x=4"), {1024, 1376, 512}, DType::kBF16);
}

Contender Ran(const std::string& algorithm, std::vector<double> runs_ms) {
  Contender contender;
  contender.options = {.algorithm = algorithm, .chunks = 2, .k_chunks = 1, .split = "N=x"};
  contender.predicted_ms = 11;
  contender.runs_ms = std::move(runs_ms);
  contender.rounds = 1;
  return contender;
}

// The choice of auto is the first one, and serial the last.
TuningRace RaceOf(std::vector<Contender> contenders) {
  TuningRace race;
  race.contenders = std::move(contenders);
  race.serial = static_cast<int>(race.contenders.size()) - 1;
  return race;
}

std::vector<bool> Dropped(const TuningRace& race) {
  std::vector<bool> dropped;
  for (const Contender& contender : race.contenders) dropped.push_back(contender.dropped);
  return dropped;
}

TEST(TuningRace, APlanIsLeftOutIfItDoesNotFitButNotIfAQueueIsFull) {
  for (const char* reason : {"", kReasonHeapFull}) {
    const absl::Status error = WithReason(absl::ResourceExhaustedError("too large"), reason);
    EXPECT_TRUE(DoesNotFit(error)) << reason;
    EXPECT_TRUE(IsOfPlan(error)) << reason;
  }
  for (const char* reason : {kReasonQuotaFull, kReasonTransfersFull}) {
    const absl::Status error = WithReason(absl::ResourceExhaustedError("full"), reason);
    EXPECT_FALSE(DoesNotFit(error)) << reason;
    EXPECT_FALSE(IsOfPlan(error)) << reason;
  }
  EXPECT_FALSE(DoesNotFit(absl::UnimplementedError("")));
  EXPECT_TRUE(IsOfPlan(absl::UnimplementedError("")));
  EXPECT_FALSE(IsOfPlan(absl::InternalError("")));
  EXPECT_FALSE(DoesNotFit(absl::OkStatus()));
}

TEST(TuningRace, TakesTheCandidatesThatAreNotRefused) {
  const Problem problem = SomeProblem();
  const Topology topology = *UniformTopology(4, 2, 2);
  const absl::StatusOr<Choice> choice =
      Choose(problem, {*Preset("cpu-tcp"), topology, {}}, PlanOptions());
  ASSERT_TRUE(choice.ok()) << choice.status();
  Choice with_refused = *choice;
  with_refused.candidates.push_back(choice->candidates.back());
  with_refused.candidates.back().refused = "does not fit";
  const TuningRace race = RaceOf(problem, with_refused);
  ASSERT_EQ(race.contenders.size(), choice->candidates.size());
  EXPECT_EQ(race.contenders[race.predicted].options, OptionsOf(problem, choice->recipe));
  ASSERT_TRUE(race.serial.has_value());
  EXPECT_EQ(race.contenders[*race.serial].options.algorithm, "serial");
  for (const Contender& contender : race.contenders) {
    EXPECT_NE(contender.options.algorithm, "auto");
    EXPECT_GT(contender.options.chunks, 0);
    EXPECT_GT(contender.options.k_chunks, 0);
    EXPECT_NE(contender.options.split, "");
    EXPECT_GT(contender.predicted_ms, 0);
  }
}

TEST(TuningRace, AJobHasAtLeastOneTimedEpochAndNoMoreThanAreReported) {
  Contender contender = Ran("ring", {});
  for (const auto& [predicted_ms, epochs] : {std::pair(0.1, 8), {10.0, 6}, {50.0, 2}, {900.0, 2}}) {
    contender.predicted_ms = predicted_ms;
    EXPECT_EQ(EpochsOf(contender), epochs) << predicted_ms;
  }
  for (const auto& [time_ms, epochs] : {std::pair(0.1, 64), {1.0, 51}, {10.0, 6}, {900.0, 2}}) {
    contender.runs_ms = {time_ms};
    EXPECT_EQ(EpochsOf(contender), epochs) << time_ms;
  }
}

TEST(TuningRace, TheFirstRoundTakesThePredictedTimes) {
  TuningRace race = RaceOf({Ran("ring", {}), Ran("direct", {}), Ran("serial", {})});
  race.contenders[0].predicted_ms = 100;
  race.contenders[1].predicted_ms = 1;
  race.contenders[2].refused = "does not fit";
  EXPECT_DOUBLE_EQ(FirstRoundMs(race), 100 * 2 + 1 * 8);
}

TEST(TuningRace, SlowContendersDropOutExceptAutoAndSerial) {
  TuningRace race = RaceOf({Ran("ring", {20}), Ran("direct", {10}), Ran("split_ring", {10.9}),
                            Ran("peer", {11.2}), Ran("serial", {40})});
  DropSlow(&race);
  EXPECT_EQ(Dropped(race), std::vector<bool>({false, false, false, true, false}));
}

TEST(TuningRace, AtLeastTwoContendersStay) {
  TuningRace race = RaceOf({Ran("direct", {10}), Ran("ring", {13}), Ran("peer", {15})});
  race.serial.reset();
  DropSlow(&race);
  EXPECT_EQ(Dropped(race), std::vector<bool>({false, false, true}));
}

TEST(TuningRace, AContenderRacesAgainIfTheOthersTurnOutNoFaster) {
  TuningRace race = RaceOf({Ran("ring", {10}), Ran("direct", {10}), Ran("peer", {12}),
                            Ran("split_ring", {40}), Ran("serial", {15})});
  DropSlow(&race);
  EXPECT_EQ(Dropped(race), std::vector<bool>({false, false, true, true, false}));
  race.contenders[0].runs_ms = race.contenders[1].runs_ms = {10, 13, 13};
  DropSlow(&race);
  EXPECT_EQ(Dropped(race), std::vector<bool>({false, false, false, true, false}));
}

TEST(TuningRace, TheFastestWinsUnlessAutoIsAtMostThreePercentSlower) {
  const Contender chosen = Ran("ring", {95, 95, 100, 105, 105});
  const auto winner = [&](std::vector<double> runs_ms) {
    const Outcome outcome = OutcomeOf(RaceOf({chosen, Ran("direct", std::move(runs_ms))}));
    EXPECT_EQ(outcome.not_stored, "");
    return outcome.winner;
  };
  EXPECT_EQ(winner({96, 96, 96}), 1) << "although half of the runs differ by 5 %";
  EXPECT_EQ(winner({97.5, 97.5, 97.5}), 0);
  EXPECT_EQ(winner({120, 120, 120}), 0);
  EXPECT_EQ(winner({94}), 1) << "one run has no spread";
}

TEST(TuningRace, NoPlanIsStoredIfTheRunsDifferByMoreThanTheLead) {
  const Contender noisy = Ran("ring", {14, 18, 30, 42, 60});
  const Outcome unclear = OutcomeOf(RaceOf({noisy, Ran("serial", {24, 24, 24})}));
  EXPECT_EQ(unclear.winner, 1);
  EXPECT_EQ(unclear.not_stored,
            "runs differ by 40 %; use more --rounds and --budget, or a quieter host");
  for (const double clear_ms : {15.0, 29.5}) {
    const std::vector<double> runs_ms(3, clear_ms);
    EXPECT_EQ(OutcomeOf(RaceOf({noisy, Ran("serial", runs_ms)})).not_stored, "") << clear_ms;
  }
  const Contender brief = Ran("ring", {.14, .18, .30, .42, .60});
  EXPECT_EQ(OutcomeOf(RaceOf({brief, Ran("serial", {.24, .24, .24})})).not_stored, "")
      << "short runs differ on an idle host, too";
}

TEST(TuningRace, ARefusedContenderDoesNotWin) {
  TuningRace race = RaceOf({Ran("ring", {100}), Ran("peer", {10}), Ran("serial", {120})});
  race.contenders[1].refused = "does not fit";
  EXPECT_EQ(OutcomeOf(race).winner, 0);
}

TEST(TuningRace, NoStoredPlanIsSlowerThanOneThatDroppedOut) {
  TuningRace race = RaceOf({Ran("ring", {100}), Ran("direct", {95}), Ran("serial", {120})});
  race.contenders[1].dropped = true;
  EXPECT_EQ(OutcomeOf(race).winner, 1);
}

TunedShape SomeShape() {
  TunedShape one;
  one.name = "LLaMA-7B / 8";
  one.problem = SomeProblem();
  one.race =
      RaceOf({Ran("ring", {12, 12, 12}), Ran("direct", {10, 10, 11}), Ran("serial", {15, 15, 15})});
  one.outcome.winner = 1;
  one.stored.set_hardware("cpu: 2 x Some Processor");
  one.stored.set_date("2026-11-27");
  return one;
}

TunedShape SkippedShape() {
  TunedShape one = SomeShape();
  one.name = "GPT-3 / 8";
  one.race = {};
  one.skipped = "rank 1 has 1 GiB free of 2 GiB";
  return one;
}

TunedShape UnclearShape() {
  TunedShape one = SomeShape();
  one.outcome.not_stored = "runs differ by 40 %; use more --rounds and --budget, or a quieter host";
  return one;
}

TEST(TuningReport, AShapeWithoutAClearWinnerSaysWhyNoPlanIsStored) {
  constexpr char kWhy[] = "runs differ by 40 %; use more --rounds and --budget, or a quieter host";
  EXPECT_EQ(TunedLine(UnclearShape()), absl::StrCat("LLaMA-7B / 8: not stored: ", kWhy));
  EXPECT_THAT(TunedText({UnclearShape()}),
              HasSubstr(absl::StrCat("  12.000  15.000     11.000  not stored\n    ", kWhy, "\n")));
  const Json json = ToJson(UnclearShape());
  EXPECT_EQ(json["not_stored"], kWhy);
  EXPECT_TRUE(json["algorithm"].is_null());
  EXPECT_EQ(json["plans"].size(), 3u);
}

TEST(TuningReport, ARowComparesTheStoredPlanWithAutoAndSerial) {
  const std::string text = TunedText({SomeShape(), SkippedShape()});
  EXPECT_THAT(text, HasSubstr("A[M_x, K] * B[K, N_x] -> C[M, N_x]  bf16  mesh x=4\n"));
  EXPECT_THAT(text, HasSubstr("LLaMA-7B / 8  10.000  12.000  15.000     11.000  direct, 2 chunks a "
                              "shard, split N=x\n"));
  EXPECT_THAT(text, HasSubstr("GPT-3 / 8"));
  EXPECT_THAT(text, HasSubstr("skipped\n    rank 1 has 1 GiB free of 2 GiB\n"));
  EXPECT_THAT(text, Not(HasSubstr("(auto)")));
  EXPECT_EQ(TunedLine(SomeShape()),
            "LLaMA-7B / 8: direct, 2 chunks a shard, split N=x: 10.000 ms, auto 12.000 ms");
  EXPECT_EQ(TunedLine(SkippedShape()), "GPT-3 / 8: skipped");
}

TEST(TuningReport, TheChoiceOfAutoIsNamed) {
  TunedShape one = SomeShape();
  one.outcome.winner = one.race.predicted;
  EXPECT_THAT(TunedLine(one), HasSubstr("split N=x (auto): 12.000 ms"));
}

TEST(TuningReport, LinesFitATerminal) {
  FitLinesTo(80);
  EXPECT_LE(Widest(TunedText({SomeShape(), SkippedShape()})), 80u);
  FitLinesTo(100);
}

TEST(TuningReport, JsonHasEveryPlan) {
  const Json json = ToJson(SomeShape());
  EXPECT_EQ(json["schema"], "agmm.tune_result.v1");
  EXPECT_EQ(json["name"], "LLaMA-7B / 8");
  EXPECT_EQ(json["m"], 1024);
  EXPECT_EQ(json["dtypes"], Json({"bf16", "bf16", "bf16"}));
  EXPECT_EQ(json["algorithm"], "direct");
  EXPECT_EQ(json["chunks"], 2);
  EXPECT_EQ(json["time_ms"], 10);
  EXPECT_EQ(json["auto_ms"], 12);
  EXPECT_EQ(json["serial_ms"], 15);
  EXPECT_EQ(json["is_auto"], false);
  EXPECT_EQ(json["hardware"], "cpu: 2 x Some Processor");
  ASSERT_EQ(json["plans"].size(), 3u);
  EXPECT_EQ(json["plans"][0]["algorithm"], "ring");
  EXPECT_EQ(json["plans"][0]["epochs"], 3);
}

TEST(TuningReport, JsonOfASkippedShapeHasTheSameFields) {
  const Json some = ToJson(SomeShape()), skipped = ToJson(SkippedShape());
  EXPECT_EQ(skipped["skipped"], "rank 1 has 1 GiB free of 2 GiB");
  ASSERT_EQ(some.size(), skipped.size());
  for (const auto& item : some.items()) ASSERT_TRUE(skipped.contains(item.key())) << item.key();
  EXPECT_TRUE(skipped["algorithm"].is_null());
  EXPECT_TRUE(skipped["time_ms"].is_null());
}

v1::TunedPlan SomePlan() {
  return FromText<v1::TunedPlan>(R"pb(
    spec: "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
    dtypes: DTYPE_BF16
    dtypes: DTYPE_BF16
    dtypes: DTYPE_F32
    mesh: "x=4"
    ranks_per_node: 2
    ranks_per_node: 2
    m: 1024
    n: 1376
    k: 512
    hardware: "cpu: 2 x Some Processor"
    between_gb_per_s: 1.25
    options { algorithm: "ring" chunk_count: 4 k_chunk_count: 1 split: "N=x" }
    time_us: 12300
    serial_us: 15000
    date: "2026-11-27"
  )pb");
}

TEST(TuningReport, PlansOfOneProblemShareATable) {
  v1::TuningStatus status;
  *status.add_plans() = SomePlan();
  *status.add_plans() = SomePlan();
  status.mutable_plans(1)->set_m(2048);
  *status.add_shipped() = SomePlan();
  status.mutable_shipped(0)->set_mesh("x=2,y=2");
  status.set_file("/var/lib/agmm/tuning.txtpb");
  status.add_skipped("/var/lib/agmm/tuning.txtpb:7:3: m is 0");
  EXPECT_EQ(TuningStatusText(status),
            "A[M_x, K] * B[K, N_x] -> C[M, N_x]  bf16, bf16 -> f32  mesh x=4\n"
            "on 2 nodes with 2+2 ranks: cpu: 2 x Some Processor, 1.25 GB/s between nodes\n"
            "shape               T  serial  date        plan\n"
            "                   ms      ms\n"
            "1024x1376x512  12.300  15.000  2026-11-27  ring, 4 chunks a shard, split N=x\n"
            "2048x1376x512  12.300  15.000  2026-11-27  ring, 4 chunks a shard, split N=x\n"
            "\n"
            "shipped with the program:\n"
            "\n"
            "A[M_x, K] * B[K, N_x] -> C[M, N_x]  bf16, bf16 -> f32  mesh x=2,y=2\n"
            "on 2 nodes with 2+2 ranks: cpu: 2 x Some Processor, 1.25 GB/s between nodes\n"
            "shape               T  serial  date        plan\n"
            "                   ms      ms\n"
            "1024x1376x512  12.300  15.000  2026-11-27  ring, 4 chunks a shard, split N=x\n"
            "\n"
            "the plans are in /var/lib/agmm/tuning.txtpb\n"
            "not used: /var/lib/agmm/tuning.txtpb:7:3: m is 0\n");
}

TEST(TuningReport, PlansOfLinksWithAnotherRateAreMarked) {
  v1::TuningStatus status;
  *status.add_plans() = SomePlan();
  const auto marked = [&](const LinksNow& now) {
    return absl::StrContains(TuningStatusText(status, now), "not used");
  };
  EXPECT_THAT(TuningStatusText(status, {2, 0.5}),
              HasSubstr("1.25 GB/s between nodes; not used, because it is\n"
                        "0.5 GB/s now: tune again\n"));
  EXPECT_FALSE(marked({2, 1.1})) << "nearly the same rate";
  EXPECT_FALSE(marked({2, 0})) << "not measured";
  EXPECT_FALSE(marked({3, 0.5})) << "the plan is for some of the nodes";
}

TEST(TuningReport, AnEmptyTableSaysHowToFillIt) {
  EXPECT_EQ(TuningStatusText({}),
            "no tuned plans; `agmmctl tune` measures some\n\n"
            "the plans are kept until the daemon of node 0 ends\n");
}

absl::StatusOr<TunedPlans> TunedPlansIn(const std::string& text, const std::string& hardware) {
  const TempFolder folder("tuning_flags");
  const std::string file = folder / "table.textproto";
  std::ofstream(file) << text;
  AGMM_ASSIGN_OR_RETURN(std::optional<TunedPlans> plans, TunedPlansOf({file, hardware}));
  return *std::move(plans);
}

TEST(TuningFlags, TheHardwareOfShippedPlansIsKnown) {
  const std::string shipped = ShippedTuning().entries.front().plan.key.hardware;
  EXPECT_EQ(TunedPlansIn("", "")->hardware, shipped);
  EXPECT_EQ(TunedPlansIn("", shipped)->hardware, shipped);
  const absl::Status error = TunedPlansIn("", "abacus").status();
  EXPECT_TRUE(absl::IsInvalidArgument(error)) << error;
  EXPECT_THAT(std::string(error.message()), HasSubstr(shipped));
}

TEST(TuningFlags, WrongEntriesAreSkippedWithTheirPlaces) {
  const absl::StatusOr<TunedPlans> plans = TunedPlansIn("# a table\nplans {\n  m: 0\n}\n", "");
  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_THAT(plans->skipped, ::testing::ElementsAre(HasSubstr("table.textproto:2:")));
}

TEST(TuningFlags, AnErrorOfTheHardwareNamesTheEntryThatWasSkipped) {
  const std::string wrong = "plans {\n  hardware: \"abacus\"\n  m: 0\n}\n";
  EXPECT_THAT(std::string(TunedPlansIn(wrong, "abacus").status().message()),
              ::testing::ContainsRegex("they have plans for '.*'; a tuned plan is not used: "
                                       ".*table.textproto:[1-4]:[0-9]+: [^(]+$"));
  EXPECT_THAT(std::string(TunedPlansIn(wrong + wrong, "abacus").status().message()),
              ::testing::EndsWith(" (and 1 more)"));
}

}  // namespace
}  // namespace agmm
