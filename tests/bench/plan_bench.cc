// Plans, and proofs of plans, of a product over meshes of 2 to 64 ranks, two to a node. All of it
// is done once a plan by every daemon; the count of steps stands beside the time.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/verify.h"

namespace agmm {
namespace {

struct Case {
  Case(const std::string& algorithm, int ranks)
      : problem(ParseProblem(kDefaultSpec, ParseMesh(absl::StrCat("x=", ranks)).value(),
                             {8192, 28672, 8192}, DType::kBF16)
                    .value()),
        topology(UniformTopology(ranks, algorithm == "peer" ? 1 : ranks / 2).value()),
        options{algorithm} {}
  const Problem problem;
  const Topology topology;
  const PlanOptions options;
};

void CountSteps(benchmark::State& state, const Schedule& schedule) {
  size_t steps = 0;
  for (const auto& rank : schedule.ranks) steps += rank.size();
  state.counters["steps"] = static_cast<double>(steps);
}

void BM_Plan(benchmark::State& state, const std::string& algorithm) {
  const Case one(algorithm, static_cast<int>(state.range(0)));
  for (auto _ : state)
    benchmark::DoNotOptimize(Plan(one.problem, one.topology, one.options).value());
  CountSteps(state, Plan(one.problem, one.topology, one.options).value());
}

void BM_Verify(benchmark::State& state, const std::string& algorithm) {
  const Case one(algorithm, static_cast<int>(state.range(0)));
  const Schedule schedule = Plan(one.problem, one.topology, one.options).value();
  for (auto _ : state) {
    if (const absl::Status status = Verify(one.problem, one.topology, schedule); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::abort();
    }
  }
  CountSteps(state, schedule);
}

void Register() {
  for (const std::string& algorithm : Algorithms()) {
    if (algorithm == "auto") continue;
    for (const auto& [what, run] :
         {std::pair("plan/", &BM_Plan), std::pair("verify/", &BM_Verify)}) {
      benchmark::RegisterBenchmark((what + algorithm).c_str(), run, algorithm)
          ->RangeMultiplier(2)
          ->Range(2, 64)
          ->Unit(benchmark::kMillisecond);
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
