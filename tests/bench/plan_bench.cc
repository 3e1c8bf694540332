// Plans, the numbers of their steps, proofs, hashes and simulations, in CPU time: of products over
// meshes of 2 to 256 ranks, two to a node (peer: all on one). Every daemon plans, proves and hashes
// once for each plan. The output gives the number of steps with the time. "plan/ring/64x8": 64
// ranks, 8 chunks a shard. "choose/auto/64x0": the choice of the options of such a product, which
// simulates up to 12 plans. Simulations and choices are for CPU devices.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/predict/choose.h"
#include "kernels/predict/simulate.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/verify.h"
#include "proto/convert/machine_text.h"

namespace agmm {
namespace {

struct Case {
  Case(const std::string& algorithm, int ranks, int chunks)
      : problem(ParseProblem(kDefaultSpec, ParseMesh(absl::StrCat("x=", ranks)).value(),
                             {1024 * ranks, 28672, 8192}, DType::kBF16)
                    .value()),
        topology(UniformTopology(ranks, algorithm == "peer" ? 1 : ranks / 2).value()),
        options{algorithm, chunks, 1, "N=x"},
        platform{Preset("cpu-tcp").value(), topology, {}} {}
  Schedule Planned() const { return Plan(problem, topology, options).value(); }

  const Problem problem;
  const Topology topology;
  const PlanOptions options;
  const Platform platform;
};

void CountSteps(benchmark::State& state, const Schedule& schedule) {
  size_t steps = 0;
  for (const auto& rank : schedule.ranks) steps += rank.size();
  state.counters["steps"] = static_cast<double>(steps);
}

void BM_Plan(benchmark::State& state, const Case& one) {
  for (auto _ : state) benchmark::DoNotOptimize(one.Planned());
  CountSteps(state, one.Planned());
}

void BM_Count(benchmark::State& state, const Case& one) {
  const Recipe recipe = ResolveOptions(one.problem, one.topology, one.options)->recipe;
  for (auto _ : state) benchmark::DoNotOptimize(CostOf(one.problem, one.topology, recipe));
}

void BM_Verify(benchmark::State& state, const Case& one) {
  const Schedule schedule = one.Planned();
  for (auto _ : state) {
    if (const absl::Status status = Verify(one.problem, one.topology, schedule); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::abort();
    }
  }
  CountSteps(state, schedule);
}

void BM_Hash(benchmark::State& state, const Case& one) {
  const Schedule schedule = one.Planned();
  for (auto _ : state) benchmark::DoNotOptimize(PlanHash(one.problem, schedule));
  CountSteps(state, schedule);
}

void BM_Simulate(benchmark::State& state, const Case& one) {
  const Schedule schedule = one.Planned();
  for (auto _ : state)
    benchmark::DoNotOptimize(Simulate(one.problem, one.platform, schedule).value());
  CountSteps(state, schedule);
}

void BM_Choose(benchmark::State& state, const Case& one) {
  size_t simulated = 0;
  for (auto _ : state)
    simulated = Choose(one.problem, one.platform, {.algorithm = "auto"})->candidates.size();
  state.counters["simulated"] = static_cast<double>(simulated);
}

void Register() {
  for (const int ranks : {2, 8, 64}) {
    benchmark::RegisterBenchmark(absl::StrCat("choose/auto/", ranks, "x0").c_str(), BM_Choose,
                                 Case("auto", ranks, 0))
        ->Unit(benchmark::kMillisecond);
  }
  constexpr std::pair<int, int> kSizes[] = {{2, 1},  {8, 1},  {8, 4},  {8, 8},
                                            {64, 1}, {64, 8}, {256, 1}};
  for (const std::string& algorithm : AlgorithmNames()) {
    if (algorithm == "auto") continue;
    for (const auto& [ranks, chunks] : kSizes) {
      const Case one(algorithm, ranks, chunks);
      for (const auto& [what, run] : {std::pair("plan", &BM_Plan), std::pair("count", &BM_Count),
                                      std::pair("verify", &BM_Verify), std::pair("hash", &BM_Hash),
                                      std::pair("simulate", &BM_Simulate)}) {
        benchmark::RegisterBenchmark(
            absl::StrCat(what, "/", algorithm, "/", ranks, "x", chunks).c_str(), run, one)
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  agmm::Register();
  benchmark::RunSpecifiedBenchmarks();
}
