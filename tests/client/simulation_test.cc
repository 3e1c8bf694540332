// Simulated plans as text, as JSON and as a trace, of hand-made simulations; and the choice of the
// plans that are simulated.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/simulated_plans.h"
#include "client/ctl/simulation_json.h"
#include "client/ctl/simulation_text.h"
#include "client/ctl/simulation_trace.h"
#include "client/ctl/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/predict/choose.h"
#include "kernels/schedule/spec.h"
#include "tests/golden/golden.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAreArray;

// Devices of 100 flops/ns behind ports of 1 byte/ns, one on each node.
Machine SomeMachine() {
  Machine machine;
  machine.name = "test";
  machine.within.rates = machine.staged.rates = machine.between.rates = {1, 2, 1000};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    machine.device.gemm.push_back({dtype, 1e6, 100});
  machine.device.memory = 100;
  return machine;
}

// A ring of two ranks on two nodes, and a simulation of it with simple times.
struct Small {
  Small() {
    platform.machine = SomeMachine();
    platform.topology.node_of_rank = {0, 1};
    plan.schedule = *Plan(problem, platform.topology, options);
    plan.algorithm = plan.schedule.algorithm;
    plan.options = options;
    plan.hash = 0x1234;
    Simulation& simulation = plan.simulation;
    simulation.time_ns = 40'000;
    for (const std::vector<Step>& steps : plan.schedule.ranks) {
      plan.steps += static_cast<int64_t>(steps.size());
      std::vector<StepTimes>& times = simulation.steps.emplace_back();
      for (int64_t i = 0; i < static_cast<int64_t>(steps.size()); ++i)
        times.push_back({i * 10'000, i * 10'000 + 1'000, i * 10'000 + 9'000, i * 10'000 + 9'500});
    }
    simulation.ranks = {{0, 40'000, 30'000}, {500, 38'000, 20'000}};
    simulation.resources = {{"node 0's port, out", 20'000, true},
                            {"rank 1's cores", 10'000, false}};
    simulation.chain = {{0, 0, 0, 9'000, true, "rank 1 waits 9 us for rows 0:4 of A from rank 0"},
                        {1, 1, 9'000, 40'000, false, "rank 1, 31 us: multiply A[0:4] x B"}};
    plan.prediction = PredictionOf(simulation, {30'000, 20'000, 60'000});
  }

  const PlanOptions options = {.algorithm = "ring", .chunks = 1, .k_chunks = 1, .split = "N=x"};
  const Problem problem = *ParseProblem(kDefaultSpec, *ParseMesh("x=2"), {8, 4, 4}, DType::kF32);
  Platform platform;
  SimulatedPlan plan;
};

TEST(SimulationJson, OfAPlanMatchesTheGoldenFile) {
  Small small;
  SimulatedPlans all;
  all.taken = small.plan;
  all.plans.push_back(small.plan);
  all.refused.push_back({"peer", "reads from the memory of one node"});
  ExpectGolden("json/simulation.json",
               SimulationJson(small.problem, small.platform, all).dump(1) + "\n");
}

TEST(SimulationJson, OfATorusHasItsAxesAndTheCoordinatesOfTheRanks) {
  Small small;
  small.platform.torus = {{{"a", 2, false}, {"b", 1, false}}, {{0, 0}, {1, 0}}};
  const Json torus = SimulationJson(small.problem, small.platform, {})["torus"];
  EXPECT_EQ(torus.dump(),
            R"({"axes":[{"name":"a","size":2,"wraps":false},{"name":"b","size":1,"wraps":false}],)"
            R"("coordinates":[[0,0],[1,0]]})");
}

TEST(SimulationText, OfAPlanHasItsTimesTheUseOfResourcesAndTheChain) {
  const Small small;
  const std::string text = SimulationText(small.problem, small.platform, small.plan);
  for (const char* part :
       {"layout     2 ranks on 2 nodes\n",
        "\nT          40 us\nbound      30 us, the larger of T_gemm 30 us and T_comm 20 us\n"
        "unfused    60 us, T of serial\nR          0.75 = bound / T\n"
        "E          0.67 = 1 - (T - T_gemm) / (unfused - T_gemm)\n"
        "speedup    1.50 = unfused / T\nlimit      node 0's port, out: busy 50 %\n",
        "\nrank 0  ", "   75 %\n",
        "busy      link or rank\n  us   %\n20.0  50  node 0's port, out\n10.0  25  rank 1's "
        "cores\n",
        "the longest chain of steps:\n at\n us\n"
        "0.0  rank 1 waits 9 us for rows 0:4 of A from rank 0\n"
        "9.0  rank 1, 31 us: multiply A[0:4] x B\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(SimulationText, ResourcesBeyondTwelveAreCounted) {
  Small small;
  for (int i = 0; i < 12; ++i) small.plan.simulation.resources.push_back({"a link", 1000, true});
  EXPECT_THAT(SimulationText(small.problem, small.platform, small.plan), HasSubstr("... 2 more\n"));
}

TEST(SimulationText, OfAComparisonHasARowForEachPlanAndTheRefusals) {
  Small small;
  SimulatedPlans all;
  all.plans = {small.plan, small.plan};
  all.plans[1].algorithm = "direct";
  all.plans[1].options.k_chunks = 3;
  all.plans[1].prediction.time_ns = 50'000;
  all.refused.push_back({"peer", "reads from the memory of one node"});
  const std::string text = ComparisonText(small.problem, small.platform, all);
  EXPECT_THAT(text, HasSubstr("bound    30 us, the larger of T_gemm 30 us and T_comm 20 us\n"));
  EXPECT_THAT(
      text, HasSubstr("algorithm  chunks     T     R     E  speedup  busy  busiest resource\n"
                      "                     us                          %\n"
                      "ring            1  40.0  0.75  0.67     1.50    50  node 0's port, out\n"
                      "direct      1 x 3  50.0  0.75  0.67     1.50    40  node 0's port, out\n"));
  EXPECT_THAT(text, HasSubstr("left out:\npeer  reads from the memory of one node\n"));
  EXPECT_THAT(text, HasSubstr("\nring:\nrank 0  "));
  // Plans of different splits have different bounds.
  all.plans[1].options.split = "M=x";
  all.plans[1].prediction.references.gemm_ns = 10'000;
  const std::string different = ComparisonText(small.problem, small.platform, all);
  EXPECT_THAT(different, Not(HasSubstr("bound")));
  EXPECT_THAT(
      different,
      HasSubstr("direct      1 x 3  50.0    10.0    20.0  0.75  0.67     1.50    40  M=x    node "
                "0's port, out\n"));
  // A name is wrapped, because its end tells ports apart.
  const std::string port = "the port of the node with a long name, in";
  all.plans[1].simulation.resources.front().name = port;
  FitLinesTo(60);
  const std::string narrow = ComparisonText(small.problem, small.platform, all);
  FitLinesTo(100);
  EXPECT_THAT(narrow, HasSubstr("direct     " + port + "\n"));
}

// A burst passes at once, but counts towards the rate of its link.
TEST(SimulationText, SaysWhyTheChainEndsBeforeT) {
  Small small;
  SimulatedPlans all;
  EXPECT_THAT(SimulationText(small.problem, small.platform, small.plan), Not(HasSubstr("longer")));
  small.plan.simulation.time_ns = small.plan.simulation.resources[0].busy_ns = 75'000;
  all.plans = {small.plan};
  const std::string one = SimulationText(small.problem, small.platform, small.plan);
  const std::string comparison = ComparisonText(small.problem, small.platform, all);
  for (const std::string& text : {one, comparison}) {
    EXPECT_THAT(text, ::testing::EndsWith(
                          "T is 35 us longer than the longest chain of steps: it is how long the "
                          "busiest resource, node 0's\nport, out, works in an epoch\n"));
  }
}

TEST(SimulationText, BlamesTheNumberOfPlansOnlyIfMoreWouldCompete) {
  Small small;
  small.plan.why = "the choice";
  SimulatedPlans all;
  all.plans = {small.plan};
  all.taken = small.plan;
  const auto text = [&](int64_t time_ns) {
    all.taken->prediction.time_ns = time_ns;
    return ComparisonText(small.problem, small.platform, all);
  };
  EXPECT_THAT(text(44'000), HasSubstr("the choice; a job compares at most 12 plans"));
  EXPECT_THAT(text(40'400), Not(HasSubstr("compares")));  // within 1 %, fewer steps are preferred
  all.taken_is_tuned = true;
  EXPECT_THAT(text(44'000), Not(HasSubstr("compares")));
}

TEST(SimulationTrace, HasEveryStepAtItsTimeOnItsNode) {
  Small small;
  // A step of a relay lane begins before the epoch: the trace begins there.
  small.plan.simulation.steps[0][0].ready_ns = -2'000;
  const Json trace = TraceOf(small.problem, small.platform.topology, small.plan.schedule,
                             small.plan.simulation, "test");
  EXPECT_EQ(trace["otherData"]["machine"], "test");
  EXPECT_EQ(trace["otherData"]["epoch_begin_us"], 2.0);
  std::set<std::pair<int, int>> seen;  // rank, step
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["cat"] == "wait") continue;
    const int rank = event["args"]["rank"], step = event["args"]["step"];
    EXPECT_TRUE(seen.emplace(rank, step).second);
    EXPECT_EQ(event["pid"], rank);
    EXPECT_DOUBLE_EQ(event["ts"], step * 10 + 1 + 2);
    EXPECT_DOUBLE_EQ(event["dur"], 8);
    EXPECT_FALSE(event["args"].contains("job"));
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), small.plan.steps);
}

struct Question {
  explicit Question(const std::string& spec = kDefaultSpec, int ranks = 4)
      : problem(*ParseProblem(spec, *ParseMesh("x=" + std::to_string(ranks)), {512, 256, 128},
                              DType::kF32)) {
    platform.machine = SomeMachine();
    platform.topology = *UniformTopology(ranks, ranks);
  }
  absl::StatusOr<SimulatedPlans> Compare(const PlanOptions& options = {}) {
    return PlanSimulator(problem, platform).SimulateAll(options, [&](const std::string& name) {
      announced.push_back(name);
    });
  }

  Problem problem;
  Platform platform;
  std::vector<std::string> announced;
};

TEST(PlanSimulator, ComparesEveryAlgorithmAndSaysWhyOneIsLeftOut) {
  Question question;
  const SimulatedPlans all = *question.Compare();
  EXPECT_THAT(question.announced, UnorderedElementsAreArray(AlgorithmNames()));
  EXPECT_EQ(question.announced.back(), "auto");
  EXPECT_EQ(all.plans.size() + all.refused.size() + 1, question.announced.size());
  ASSERT_EQ(all.refused.size(), 1);
  EXPECT_EQ(all.refused[0].algorithm, "peer");
  EXPECT_THAT(all.refused[0].why, HasSubstr("reads from the memory of one node"));
  for (size_t i = 1; i < all.plans.size(); ++i)
    EXPECT_GE(all.plans[i].prediction.time_ns, all.plans[i - 1].prediction.time_ns);
}

TEST(PlanSimulator, TheFastestPlanAloneKeepsItsSteps) {
  Question question;
  const SimulatedPlans all = *question.Compare();
  EXPECT_EQ(all.plans[0].schedule.ranks.size(), 4);
  EXPECT_EQ(all.plans[0].simulation.steps.size(), 4);
  for (size_t i = 1; i < all.plans.size(); ++i) {
    EXPECT_TRUE(all.plans[i].schedule.ranks.empty());
    EXPECT_TRUE(all.plans[i].simulation.steps.empty());
    EXPECT_FALSE(all.plans[i].simulation.resources.empty());
  }
}

TEST(PlanSimulator, NamesTheChoiceOfDaemons) {
  Question question;
  const Choice choice = *Choose(question.problem, question.platform, {});
  const SimulatedPlans all = *question.Compare();
  ASSERT_TRUE(all.taken.has_value());
  EXPECT_EQ(all.taken->options, OptionsOf(question.problem, choice.recipe));
  EXPECT_EQ(all.taken->prediction.time_ns, choice.time_ns);
  EXPECT_EQ(all.taken->why, choice.why);
  EXPECT_TRUE(all.taken->schedule.ranks.empty());
  const std::string text = ComparisonText(question.problem, question.platform, all);
  EXPECT_THAT(text, HasSubstr("auto takes " + choice.recipe.algorithm->name));
  EXPECT_EQ(SimulationJson(question.problem, question.platform, all)["taken"]["why"], choice.why);
}

TEST(PlanSimulator, KeepsWithinTheHeapOfTheMachine) {
  Question question(kDefaultSpec, 8);
  const PlanOptions ring = {.algorithm = "ring"};
  const SimulatedPlan free = *PlanSimulator(question.problem, question.platform).Simulate(ring);
  question.platform.machine.heap_bytes = free.schedule.workspace_bytes - 1;
  const SimulatedPlan bound = *PlanSimulator(question.problem, question.platform).Simulate(ring);
  EXPECT_LT(bound.schedule.workspace_bytes, free.schedule.workspace_bytes);
  EXPECT_EQ(bound.options.workspace_shards, 2) << bound.why;
}

TEST(PlanSimulator, SaysThatShardsAndWorkspaceDoNotFitADevice) {
  Question question;
  const PlanOptions ring = {.algorithm = "ring"};
  const SimulatedPlan free = *PlanSimulator(question.problem, question.platform).Simulate(ring);
  int64_t bytes = free.schedule.workspace_bytes;
  for (const Tensor& tensor : question.problem.tensors)
    bytes += ShardBytes(question.problem.mesh, tensor);
  question.platform.machine.heap_bytes = bytes;
  EXPECT_EQ(PlanSimulator(question.problem, question.platform).Simulate(ring)->refused, "");
  question.platform.machine.heap_bytes = bytes - 1;
  EXPECT_THAT(PlanSimulator(question.problem, question.platform).Simulate(ring)->refused,
              StartsWith("the shards of a rank and its workspace take "));
}

TEST(PlanSimulator, TakesATunedPlanOnlyWithinTheHeapOfTheMachine) {
  Question question(kDefaultSpec, 8);
  const SimulatedPlan ring =
      *PlanSimulator(question.problem, question.platform).Simulate({.algorithm = "ring"});
  TunedPlan plan;
  plan.key = TuningKeyOf(question.problem, question.platform.topology, question.platform.machine,
                         "some cores");
  plan.options = ring.options;
  const TunedPlans tuned = {TuningTable(std::vector<TunedPlan>{plan}), "some cores", {}};
  const auto is_tuned = [&] {
    return PlanSimulator(question.problem, question.platform, &tuned)
        .SimulateAll({}, [](const std::string&) {})
        ->taken_is_tuned;
  };
  EXPECT_TRUE(is_tuned());
  question.platform.machine.heap_bytes = ring.schedule.workspace_bytes - 1;
  EXPECT_FALSE(is_tuned());
}

TEST(PlanSimulator, AProductThatMovesNothingHasOnePlan) {
  Question question("A[M_x, K] * B[K, N] -> C[M_x, N]");
  const SimulatedPlans all = *question.Compare();
  ASSERT_EQ(all.plans.size(), 1);
  EXPECT_EQ(all.plans[0].algorithm, "local");
  EXPECT_TRUE(all.refused.empty());
}

TEST(PlanSimulator, IfEveryAlgorithmRefusesTheErrorNamesTheFirst) {
  Question question;
  const absl::Status error = question.Compare({.split = "N=y"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(error)) << error;
  EXPECT_THAT(std::string(error.message()), StartsWith("no algorithm can plan this: serial: "));
}

}  // namespace
}  // namespace agmm
