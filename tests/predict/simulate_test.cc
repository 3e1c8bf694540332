// Small schedules whose times are computed by hand: credits, places that take turns, relay lanes,
// carried sends, reads in place, and the joins at both ends of an epoch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "kernels/predict/predict.h"
#include "kernels/predict/simulate.h"
#include "kernels/schedule/demand.h"
#include "kernels/schedule/plan.h"
#include "tests/predict/platforms.h"
#include "tests/schedule/problems.h"

namespace agmm {

bool operator==(const StepTimes& x, const StepTimes& y) {
  return std::tie(x.ready_ns, x.start_ns, x.end_ns, x.arrived_ns) ==
         std::tie(y.ready_ns, y.start_ns, y.end_ns, y.arrived_ns);
}
void PrintTo(const StepTimes& times, std::ostream* out) {
  *out << "ready " << times.ready_ns << " start " << times.start_ns << " end " << times.end_ns
       << " arrived " << times.arrived_ns;
}

namespace test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// A block of 1,000 bytes, which a link carries in 1,000 ns, and a multiply of 3,000 ns.
constexpr Block kSent = {0, {0, 10}, {0, 25}};
constexpr Block kA = {0, {0, 10}, {0, 10}}, kB = {1, {0, 10}, {0, 15}}, kC = {2, {0, 10}, {0, 15}};

Platform SmallPlatform(int ranks) {
  Platform platform = PlatformOf(ranks, Wiring::kPairwise, Duplex(1, 100));
  platform.machine.device.gemm = {{DType::kF32, 1, 1}};
  platform.machine.device.step_ns = 5;
  platform.machine.device.signal_ns = 10;
  return platform;
}

Place In(Rank rank, Buffer buffer = kWorkspace) { return {rank, buffer, 0, 128, DType::kF32}; }

Step Send(Rank from, Rank to, Slot arrived, std::vector<Wait> waits = {}, int lane = 0) {
  return {Transfer{kSent, In(from), {In(to)}}, lane, std::move(waits), {arrived}};
}

Step Compute(Rank rank, std::vector<Wait> waits = {}, std::vector<Slot> signals = {}) {
  Multiply multiply;
  multiply.a = kA;
  multiply.b = kB;
  multiply.c = kC;
  multiply.a_place = In(rank, 0);
  multiply.b_place = In(rank, 1);
  multiply.out = In(rank, 2);
  return {multiply, 0, std::move(waits), std::move(signals)};
}

Simulation SimulateSteps(const Platform& platform, std::vector<std::vector<Step>> ranks) {
  const Problem problem = MakeProblem(static_cast<int>(ranks.size()), {240, 240, 240});
  return Simulate(problem, platform, {"by hand", 1 << 20, std::move(ranks)}).value();
}

std::vector<std::pair<std::string, int64_t>> UsesOf(const Simulation& simulation) {
  std::vector<std::pair<std::string, int64_t>> uses;
  for (const ResourceUse& use : simulation.resources)
    if (use.busy_ns > 0) uses.emplace_back(use.name, use.busy_ns);
  return uses;
}

// The send of the second epoch waits until the multiply of the first has read the place: 3,000 ns,
// a signal and a latency later. From one send to the next: 5 + 1000 + 100 + 10, 5 + 3000 + 100
// + 10.
TEST(Simulate, ASendWaitsForTheCreditOfTheEpochBefore) {
  const Simulation result =
      SimulateSteps(SmallPlatform(2),
                    {{Send(0, 1, {1, 0}, {{{0, 0}, 1}})}, {Compute(1, {{{1, 0}, 0}}, {{0, 0}})}});
  EXPECT_EQ(result.time_ns, 4230);
  // Rank 0 begins the second epoch at 1005, after its send; rank 1 at 4120.
  EXPECT_THAT(result.steps, ElementsAre(ElementsAre(StepTimes{0, 3230, 4230, 4330}),
                                        ElementsAre(StepTimes{3115, 4345, 7345, 7345})));
  EXPECT_EQ(result.ranks[0].begin_ns, 0);
  EXPECT_EQ(result.ranks[0].end_ns, 4230);
  EXPECT_EQ(result.ranks[1].begin_ns, 3115);
  EXPECT_EQ(result.ranks[1].end_ns, 7345);
  EXPECT_EQ(result.ranks[1].multiply_ns, 3000);
  EXPECT_THAT(UsesOf(result),
              ElementsAre(Pair("rank 1's cores", 3000), Pair("link of nodes 0 -> 1", 1000)));
}

// Three blocks and two places: the third block waits for the first multiply of its own epoch, the
// first two for the last two multiplies of the epoch before.
TEST(Simulate, BlocksTakeTurnsInTwoPlaces) {
  const Simulation result = SimulateSteps(
      SmallPlatform(2), {{Send(0, 1, {1, 0}, {{{0, 2}, 1}}), Send(0, 1, {1, 1}, {{{0, 1}, 1}}),
                          Send(0, 1, {1, 2}, {{{0, 0}, 0}})},
                         {Compute(1, {{{1, 0}, 0}}, {{0, 0}}), Compute(1, {{{1, 1}, 0}}, {{0, 1}}),
                          Compute(1, {{{1, 2}, 0}}, {{0, 2}})}});
  EXPECT_EQ(result.time_ns, 10240);
  // The second epoch of rank 0 begins at 5235, with the end of its third send.
  EXPECT_THAT(result.steps, ElementsAre(ElementsAre(StepTimes{0, 5010, 6010, 6110},
                                                    StepTimes{6010, 6015, 7015, 7115},
                                                    StepTimes{7015, 9240, 10240, 10340}),
                                        ElementsAre(StepTimes{4895, 6125, 9125, 9125},
                                                    StepTimes{9125, 9130, 12130, 12130},
                                                    StepTimes{12130, 12135, 15135, 15135})));
}

// The relay of rank 1 passes on the second epoch's block before rank 1 begins that epoch, and its
// own end does not count for rank 1.
TEST(Simulate, ARelayLaneRunsAheadOfItsRank) {
  const Simulation result =
      SimulateSteps(SmallPlatform(3), {{Send(0, 1, {1, 0})},
                                       {Compute(1), Send(1, 2, {2, 0}, {{{1, 0}, 0}}, 1)},
                                       {Compute(2, {{{2, 0}, 0}})}});
  EXPECT_EQ(result.time_ns, 3005);
  // Times since rank 0 began, at 1005.
  EXPECT_THAT(result.steps, ElementsAre(ElementsAre(StepTimes{0, 5, 1005, 1105}),
                                        ElementsAre(StepTimes{2000, 2005, 5005, 5005},
                                                    StepTimes{1115, 1120, 2120, 2220}),
                                        ElementsAre(StepTimes{4230, 4235, 7235, 7235})));
  EXPECT_EQ(result.ranks[1].begin_ns, 2000);
  EXPECT_EQ(result.ranks[1].end_ns, 5005);
}

// The multiply waits for the credit of the send that it carries. The send starts with it, one
// step's cost later, and its last bytes leave when the multiply ends.
TEST(Simulate, ACarriedSendStartsAndEndsWithItsMultiply) {
  Step carried = Send(0, 1, {1, 0}, {{{0, 0}, 1}}, 1);
  std::get<Transfer>(carried.op).from = In(0, 0);
  std::get<Transfer>(carried.op).carrier = 0;
  const Simulation result = SimulateSteps(
      SmallPlatform(2), {{Compute(0), carried}, {Compute(1, {{{1, 0}, 0}}, {{0, 0}})}});
  // Two multiplies, two ways, two signals and two steps.
  EXPECT_EQ(result.time_ns, 2 * (3000 + 100 + 10 + 5));
  EXPECT_THAT(result.steps, ElementsAre(ElementsAre(StepTimes{0, 3230, 6230, 6230},
                                                    StepTimes{0, 3235, 6230, 6330}),
                                        ElementsAre(StepTimes{3115, 6345, 9345, 9345})));
}

// Rank 1 reads 400 bytes of A at rank 0, which takes 4,000 ns, longer than its multiply. The joins
// of rank 0 let it in at the beginning of an epoch, and wait for it at the end.
TEST(Simulate, APeerReadsAfterTheEntryAndBeforeTheExit) {
  Platform platform = SmallPlatform(2);
  platform.topology = UniformTopology(2, 1).value();
  platform.machine.within = {Wiring::kPairwise, Duplex(0.1, 20), {}};
  Step multiply = Compute(1, {{{1, 0}, 0}}, {{0, 0}});
  std::get<Multiply>(multiply.op).a_place = In(0, 0);
  const Simulation result = SimulateSteps(
      platform, {{{Join(), 0, {}, {{1, 0}}}, {Join(), 0, {{{0, 0}, 0}}, {}}}, {multiply}});
  // A step, a signal to the other rank and back, two more steps: 5 + 10 + 20 + 5 + 4000 + 10 + 20 +
  // 5.
  EXPECT_EQ(result.time_ns, 4075);
  EXPECT_THAT(result.steps,
              ElementsAre(ElementsAre(StepTimes{35, 40, 40, 40}, StepTimes{40, 4110, 4110, 4110}),
                          ElementsAre(StepTimes{0, 75, 4075, 4075})));
  EXPECT_THAT(UsesOf(result),
              ElementsAre(Pair("link of ranks 0 -> 1", 4000), Pair("rank 1's cores", 3000)));
}

TEST(Simulate, AMessageCostsCoresMemoryAndPorts) {
  Platform platform = PlatformOf(2, Wiring::kSwitch, {1, 1.25, 0});
  DeviceRates& device = platform.machine.device;
  device.memory = 10;
  device.message_ns = 7;
  device.send_ns_per_byte = 2;
  device.receive_ns_per_byte = 3;
  const Simulation result = SimulateSteps(platform, {{Send(0, 1, {1, 0})}, {}});
  EXPECT_EQ(result.time_ns, 3007);
  EXPECT_THAT(UsesOf(result),
              ElementsAre(Pair("rank 1's cores", 3007), Pair("rank 0's cores", 2007),
                          Pair("node 0's port, out", 1000), Pair("node 1's port, in", 1000),
                          Pair("node 0's port", 800), Pair("node 1's port", 800),
                          Pair("rank 0's memory", 100), Pair("rank 1's memory", 100)));
}

// Both ranks send: a link of 1 byte/ns each way and 1.25 both ways carries 2,000 bytes in 1,600 ns.
TEST(Simulate, BothDirectionsShareTheLimitOfALink) {
  for (const Wiring wiring : {Wiring::kPairwise, Wiring::kSwitch}) {
    const Platform platform = PlatformOf(2, wiring, {1, 1.25, 0});
    EXPECT_EQ(SimulateSteps(platform, {{Send(0, 1, {1, 0})}, {Send(1, 0, {0, 0})}}).time_ns, 1600);
  }
}

// The two lanes of a rank share its port; its two sends take as long as one after the other.
TEST(Simulate, TheLanesOfARankShareItsPort) {
  const Platform platform = PlatformOf(3, Wiring::kSwitch, Duplex(1, 0));
  const Simulation result =
      SimulateSteps(platform, {{Send(0, 1, {1, 0}), Send(0, 2, {2, 0}, {}, 1)}, {}, {}});
  EXPECT_EQ(result.time_ns, 2000);
  EXPECT_EQ(UsesOf(result).front(), (std::pair<std::string, int64_t>("node 0's port, out", 2000)));
}

TEST(Simulate, ASlowPairIsSlowInOneDirection) {
  Platform platform = PlatformOf(2, Wiring::kSwitch, Duplex(1, 100));
  platform.machine.between.pairs = {{0, 1, 0.25, 300}};
  const Simulation result = SimulateSteps(platform, {{Send(0, 1, {1, 0})}, {Send(1, 0, {0, 0})}});
  EXPECT_EQ(result.steps[0][0].end_ns - result.steps[0][0].start_ns, 4000);
  EXPECT_EQ(result.steps[0][0].arrived_ns - result.steps[0][0].end_ns, 300);
  EXPECT_EQ(result.steps[1][0].end_ns - result.steps[1][0].start_ns, 1000);
  EXPECT_EQ(result.steps[1][0].arrived_ns - result.steps[1][0].end_ns, 100);
}

// A scheduling anomaly. Rank 0 sends two blocks to rank 1, which then multiplies, and one to rank 2
// as soon as a block of rank 2 is there. On a fast path this block arrives after 1,000 ns instead
// of 2,000, so that the answer to it shares the port with the second block of rank 1.
TEST(Simulate, AFasterPathCanTakeLonger) {
  Platform platform = PlatformOf(3, Wiring::kSwitch, Duplex(1, 0));
  platform.machine.device.gemm = {{DType::kF32, 1, 1}};
  Step answer = Send(0, 2, {2, 1}, {{{0, 0}, 0}}, 1);
  std::get<Transfer>(answer.op).from = In(0, 0);
  // All wait for the multiply of the epoch before.
  const std::vector<std::vector<Step>> ranks = {
      {Send(0, 1, {1, 0}, {{{0, 1}, 1}}), Send(0, 1, {1, 1}), answer},
      {Compute(1, {{{1, 1}, 0}}, {{0, 1}, {2, 0}})},
      {Send(2, 0, {0, 0}, {{{2, 0}, 1}})}};
  EXPECT_EQ(SimulateSteps(platform, ranks).time_ns, 6000);
  platform.machine.between.pairs = {{2, 0, 0.5, 0}};
  EXPECT_EQ(SimulateSteps(platform, ranks).time_ns, 5000);
}

// CPU devices keep a packed operand for a single multiply.
TEST(Simulate, EachMultiplyPacksAnOperandThatHasArrived) {
  Platform platform = SmallPlatform(1);
  platform.machine.device.pack_ns_per_byte = 1;  // 600 bytes of B
  Step arrived = Compute(0);
  std::get<Multiply>(arrived.op).b_place = In(0);
  EXPECT_EQ(SimulateSteps(platform, {{arrived, arrived, Compute(0)}}).time_ns, 3 * 3005 + 2 * 600);
}

// Rows of A and of the result, of 40 and 60 bytes, are 128 bytes apart.
TEST(Simulate, RowsThatAreNotDenseAreCopied) {
  Platform platform = SmallPlatform(1);
  platform.machine.device.copy_ns_per_byte = 1;
  Step dense = Compute(0);
  auto& multiply = std::get<Multiply>(dense.op);
  multiply.a_place.pitch_bytes = 40;
  const auto time_ns = [&] { return SimulateSteps(platform, {{dense}}).time_ns; };
  multiply.out.pitch_bytes = 60;
  const int64_t dense_ns = time_ns();
  EXPECT_EQ(SimulateSteps(platform, {{Compute(0)}}).time_ns, dense_ns + 400 + 600);
  multiply.accumulate = true;  // the sum so far becomes the result
  multiply.acc = multiply.out;
  multiply.finish = false;
  const int64_t sum_ns = time_ns();
  multiply.acc->pitch_bytes = 128;
  EXPECT_EQ(time_ns(), sum_ns + 2 * 600);
}

// The schedule of the first test. 400 of 1,000 bytes pass at once, in each epoch.
TEST(Simulate, BytesWithinTheBurstPassAtOnce) {
  Platform platform = SmallPlatform(2);
  platform.machine.between.rates.burst_bytes = 400;
  const Simulation result = SimulateSteps(
      platform, {{Send(0, 1, {1, 0}, {{{0, 0}, 1}})}, {Compute(1, {{{1, 0}, 0}}, {{0, 0}})}});
  EXPECT_EQ(result.time_ns, 4230 - 400);
  EXPECT_THAT(UsesOf(result),
              ElementsAre(Pair("rank 1's cores", 3000), Pair("link of nodes 0 -> 1", 1000)));
}

TEST(Simulate, BytesWithinTheBurstCountTowardsTheRate) {
  Platform platform = SmallPlatform(2);
  platform.machine.between.rates.burst_bytes = 5000;
  EXPECT_EQ(SimulateSteps(platform, {{Send(0, 1, {1, 0})}, {}}).time_ns, 1000);
}

// The parts of a chain follow each other, and make up the time.
TEST(Simulate, TheChainMakesUpTheTime) {
  const Simulation result =
      SimulateSteps(SmallPlatform(2),
                    {{Send(0, 1, {1, 0}, {{{0, 0}, 1}})}, {Compute(1, {{{1, 0}, 0}}, {{0, 0}})}});
  // The send of the first epoch arrives at 110. Its multiply gives the credit at 3225.
  std::vector<std::pair<int64_t, int64_t>> times;
  std::vector<Rank> ranks;
  for (const ChainPart& part : result.chain) {
    times.emplace_back(part.begin_ns, part.end_ns);
    ranks.push_back(part.rank);
  }
  EXPECT_THAT(times, ElementsAre(Pair(0, 110), Pair(110, 3225), Pair(3225, 4230)));
  EXPECT_THAT(ranks, ElementsAre(0, 1, 0));
}

TEST(Simulate, RefusesAScheduleThatNeverStarts) {
  const Problem problem = MakeProblem(2, {240, 240, 240});
  const Schedule schedule = {
      "by hand", 0, {{Compute(0, {{{0, 0}, 0}}, {{1, 0}})}, {Compute(1, {{{1, 0}, 0}}, {{0, 0}})}}};
  EXPECT_EQ(Simulate(problem, SmallPlatform(2), schedule).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Simulate, GivesTheSameTimesTwice) {
  const Problem problem = MakeProblem(8, {4096, 512, 512});
  const Platform platform = PlatformOf(8, Wiring::kSwitch, {1, 1.5, 2000}, 2, Duplex(5, 500));
  PlanOptions options;
  options.algorithm = "ring";
  options.chunks = 8;
  const Schedule schedule = Plan(problem, platform.topology, options).value();
  const std::clock_t before = std::clock();
  const Simulation first = Simulate(problem, platform, schedule).value();
  std::printf("8 ranks x 8 chunks: simulated in %.1f ms of CPU time\n",
              static_cast<double>(std::clock() - before) * 1e3 / CLOCKS_PER_SEC);
  const Simulation second = Simulate(problem, platform, schedule).value();
  EXPECT_EQ(first.time_ns, second.time_ns);
  EXPECT_EQ(first.steps, second.steps);
  EXPECT_EQ(UsesOf(first), UsesOf(second));
}

TEST(Predict, LeavesOutReferencesThatHaveTooManySteps) {
  constexpr int kRanks = 400;
  const Platform platform = SmallPlatform(kRanks);
  const Problem problem = MakeProblem(kRanks, {kRanks, kRanks, 4});
  const Split split = DefaultSplit(problem).value();
  const References references = ReferencesOf(problem, platform, split).value();
  EXPECT_FALSE(references.complete);
  EXPECT_GT(references.gemm_ns, 0);
  EXPECT_EQ(references.unfused_ns, 0);
  Simulation simulation;
  simulation.time_ns = 1000;
  const Prediction prediction = PredictionOf(simulation, references);
  EXPECT_EQ(prediction.overlap, 0);
  EXPECT_EQ(prediction.efficiency, 0);
  EXPECT_EQ(prediction.speedup, 0);
}

}  // namespace
}  // namespace test
}  // namespace agmm
