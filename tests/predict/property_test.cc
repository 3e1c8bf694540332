// Properties of simulations of random plans on random machines: bounds below the time, the use of
// resources, the chain, and the effect of better machines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/predict/network.h"
#include "kernels/predict/simulate.h"
#include "kernels/predict/step_usage.h"
#include "kernels/schedule/order.h"
#include "tests/predict/random_platform.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

struct RandomCase {
  ShardedPlan plan;
  Platform platform;
  Schedule schedule;
};

RandomCase DrawCase(RandomCases& cases) {
  RandomCase one;
  one.plan = cases.DrawPlanOfAny();
  one.platform = cases.DrawPlatform(one.plan);
  one.schedule = PlanWith(one.plan.problem, one.plan.topology, one.plan.recipe).value();
  return one;
}

Simulation SimulateOn(const RandomCase& one, const Machine& machine) {
  Platform platform = one.platform;
  platform.machine = machine;
  return Simulate(one.plan.problem, platform, one.schedule).value();
}
Simulation SimulateCase(const RandomCase& one) { return SimulateOn(one, one.platform.machine); }

// A step's work on a resource, in the second epoch.
struct WorkOfStep {
  int64_t start_ns = 0, end_ns = 0;
  double ns = 0;
};
struct CaseWork {
  std::map<std::string, std::vector<WorkOfStep>> by_resource;
  std::map<std::string, double> burst_ns;     // by resource
  std::vector<std::vector<double>> alone_ns;  // by rank and step
};

CaseWork WorkOfCase(const RandomCase& one, const Simulation& simulation) {
  CaseWork work;
  Network network(one.platform);
  StepUsage usage(one.plan.problem, one.platform, one.schedule.workspace_bytes, &network);
  std::vector<Activity> activities;
  for (Rank rank = 0; rank < static_cast<Rank>(one.schedule.ranks.size()); ++rank) {
    std::vector<double>& alone = work.alone_ns.emplace_back();
    for (size_t s = 0; s < one.schedule.ranks[rank].size(); ++s) {
      const StepTimes& times = simulation.steps[rank][s];
      usage.Of(one.schedule.ranks[rank][s], rank, &activities);
      alone.push_back(0);
      for (const Activity& activity : activities) {
        for (const Usage& used : activity.usages) {
          alone.back() = std::max(alone.back(), used.ns);
          work.by_resource[network.NameOf(used.resource)].push_back(
              {times.start_ns, times.end_ns, used.ns});
        }
      }
    }
  }
  for (Resource resource = 0; resource < network.resource_count(); ++resource)
    work.burst_ns[network.NameOf(resource)] = network.BurstNs(resource);
  return work;
}

TEST(EveryPrediction, KeepsTheOrderAndTheDurationOfSteps) {
  RandomCases cases(TestSeed());
  for (int i = 0; i < 300; ++i) {
    const RandomCase one = DrawCase(cases);
    const Simulation simulation = SimulateCase(one);
    const CaseWork work = WorkOfCase(one, simulation);
    const double step_ns = std::round(one.platform.machine.device.step_ns);
    for (size_t rank = 0; rank < one.schedule.ranks.size(); ++rank) {
      for (size_t s = 0; s < one.schedule.ranks[rank].size(); ++s) {
        const StepTimes& times = simulation.steps[rank][s];
        const std::string where = one.plan.name + ", " + StepName(one.schedule, rank, s);
        ASSERT_LE(times.ready_ns + step_ns, times.start_ns) << where;
        ASSERT_LE(work.alone_ns[rank][s], times.end_ns - times.start_ns + 1) << where;
        ASSERT_LE(times.end_ns, times.arrived_ns) << where;
      }
    }
  }
}

// In no interval does a resource do more work than time passes.
TEST(EveryPrediction, NeverUsesAResourceTwice) {
  RandomCases cases(TestSeed());
  for (int i = 0; i < 300; ++i) {
    const RandomCase one = DrawCase(cases);
    const CaseWork work = WorkOfCase(one, SimulateCase(one));
    for (const auto& [name, steps] : work.by_resource) {
      if (steps.size() > 100) continue;  // because this takes cubic time
      for (const WorkOfStep& first : steps) {
        for (const WorkOfStep& last : steps) {
          double within = 0;
          for (const WorkOfStep& step : steps)
            if (step.start_ns >= first.start_ns && step.end_ns <= last.end_ns) within += step.ns;
          const auto time = static_cast<double>(last.end_ns - first.start_ns);
          ASSERT_LE(within, std::max(0.0, time) * (1 + 1e-6) + 1) << one.plan.name << ", " << name;
        }
      }
    }
  }
}

// Not below the work of any resource, nor below the steps of any lane one after the other.
TEST(EveryPrediction, IsNotBelowLowerBounds) {
  RandomCases cases(TestSeed());
  for (int i = 0; i < 300; ++i) {
    const RandomCase one = DrawCase(cases);
    const Simulation simulation = SimulateCase(one);
    CaseWork work = WorkOfCase(one, simulation);
    for (const ResourceUse& use : simulation.resources) {
      double sum = work.burst_ns.at(use.name);
      for (const WorkOfStep& step : work.by_resource[use.name]) sum += step.ns;
      ASSERT_NEAR(sum, static_cast<double>(use.busy_ns), 1) << one.plan.name << ", " << use.name;
      ASSERT_LE(use.busy_ns, simulation.time_ns) << one.plan.name << ", " << use.name;
    }
    for (size_t rank = 0; rank < one.schedule.ranks.size(); ++rank) {
      const std::vector<Step>& steps = one.schedule.ranks[rank];
      const std::vector<bool> relays = RelayLanes(steps, static_cast<Rank>(rank));
      std::vector<double> lanes(relays.size(), 0);
      for (size_t s = 0; s < steps.size(); ++s)
        lanes[steps[s].lane] +=
            work.alone_ns[rank][s] + std::round(one.platform.machine.device.step_ns);
      const RankUse& use = simulation.ranks[rank];
      ASSERT_LE(use.end_ns - use.begin_ns, simulation.time_ns) << one.plan.name;
      ASSERT_LE(use.multiply_ns, use.end_ns - use.begin_ns) << one.plan.name;
      for (size_t lane = 0; lane < lanes.size(); ++lane) {
        if (relays[lane]) continue;
        ASSERT_LE(lanes[lane] * (1 - 1e-6) - 1, use.end_ns - use.begin_ns)
            << one.plan.name << ", rank " << rank << " lane " << lane;
      }
    }
  }
}

// The parts of the chain follow each other from the beginning to the end of the slowest epoch.
TEST(EveryPrediction, HasAChainWithoutGaps) {
  RandomCases cases(TestSeed());
  for (int i = 0; i < 300; ++i) {
    const RandomCase one = DrawCase(cases);
    const Simulation simulation = SimulateCase(one);
    int64_t slowest = 0, until = 0;
    for (const RankUse& use : simulation.ranks)
      slowest = std::max(slowest, use.end_ns - use.begin_ns);
    for (const ChainPart& part : simulation.chain) {
      ASSERT_EQ(part.begin_ns, until) << one.plan.name << ": " << part.text;
      ASSERT_GT(part.end_ns, part.begin_ns) << one.plan.name << ": " << part.text;
      until = part.end_ns;
    }
    ASSERT_EQ(until, slowest) << one.plan.name;
  }
}

// A parameter of a machine, which a factor above 1 makes better.
struct Parameter {
  const char* name;
  void (*improve)(Machine& machine, double factor);
};

void ImproveRates(LinkRates& rates, double factor) {
  rates.one_way *= factor;
  rates.two_way *= factor;
}

const Parameter kParameters[] = {
    {"rate within a node", [](Machine& m, double f) { ImproveRates(m.within.rates, f); }},
    {"rate between nodes", [](Machine& m, double f) { ImproveRates(m.between.rates, f); }},
    {"latency within a node", [](Machine& m, double f) { m.within.rates.latency_ns /= f; }},
    {"latency between nodes", [](Machine& m, double f) { m.between.rates.latency_ns /= f; }},
    {"flop/s",
     [](Machine& m, double f) {
       for (GemmRate& rate : m.device.gemm) rate.flops_per_ns *= f;
     }},
    {"memory", [](Machine& m, double f) { m.device.memory *= f; }},
    {"multiply", [](Machine& m, double f) { m.device.multiply_ns /= f; }},
    {"step", [](Machine& m, double f) { m.device.step_ns /= f; }},
    {"signal", [](Machine& m, double f) { m.device.signal_ns /= f; }},
    {"message", [](Machine& m, double f) { m.device.message_ns /= f; }},
    {"bytes",
     [](Machine& m, double f) {
       m.device.send_ns_per_byte /= f;
       m.device.receive_ns_per_byte /= f;
       m.device.copy_ns_per_byte /= f;
       m.device.pack_ns_per_byte /= f;
     }},
};

// Rounding: a nanosecond for each step of the longest lane and each wait, of two epochs.
double RoundingNs(const Schedule& schedule) {
  size_t steps = 0;
  for (const std::vector<Step>& of_rank : schedule.ranks) steps += of_rank.size();
  return 4.0 * static_cast<double>(steps);
}

// Everything twice as fast takes half the time.
TEST(BetterMachines, ScaleTheTimeIfEverythingScales) {
  RandomCases cases(TestSeed());
  for (int i = 0; i < 200; ++i) {
    const RandomCase one = DrawCase(cases);
    Machine better = one.platform.machine;
    for (const Parameter& parameter : kParameters) parameter.improve(better, 2);
    ImproveRates(better.staged.rates, 2);
    better.staged.rates.latency_ns /= 2;
    const auto before = static_cast<double>(SimulateCase(one).time_ns),
               after = static_cast<double>(SimulateOn(one, better).time_ns);
    // Rounding can change the order in which activities begin, so only nearly always.
    ASSERT_NEAR(after, before / 2, RoundingNs(one.schedule) + 0.01 * before) << one.plan.name;
  }
}

// If activities do not share resources, the time is a longest path.
TEST(BetterMachines, NeverTakeLongerWithoutContention) {
  RandomCases cases(TestSeed());
  for (int i = 0; i < 200; ++i) {
    RandomCase one = DrawCase(cases);
    Machine& machine = one.platform.machine;
    for (Links* links : {&machine.within, &machine.staged, &machine.between})
      links->rates = Duplex(1e9, links->rates.latency_ns);
    DeviceRates& device = machine.device;
    device.memory = 1e9;
    device.message_ns = device.send_ns_per_byte = device.receive_ns_per_byte = 0;
    device.copy_ns_per_byte = 0;
    const int64_t before = SimulateCase(one).time_ns;
    for (const Parameter& parameter : kParameters) {
      Machine better = machine;
      parameter.improve(better, cases.Scale(1.1, 4));
      ASSERT_LE(static_cast<double>(SimulateOn(one, better).time_ns),
                static_cast<double>(before) + RoundingNs(one.schedule))
          << parameter.name << ", " << one.plan.name;
    }
  }
}

// With contention they can, as in Graham's list scheduling: an activity that begins earlier slows
// down one on the longest path. In 80,000 pairs of 20,000 random plans, one parameter 1.1 to 4
// times as good made 0.86 % take longer by more than rounding, 0.44 % over 1 % longer, 0.08 % over
// 5 % longer, and the worst pair 22 % longer. No parameter is free of it: with flop/s, 0.67 % take
// over 1 % longer, and the worst pair 15 %.
TEST(BetterMachines, SeldomTakeLonger) {
  RandomCases cases(TestSeed());
  int pairs = 0, longer = 0;
  double worst = 1;
  for (int i = 0; i < 250; ++i) {
    const RandomCase one = DrawCase(cases);
    const auto before = static_cast<double>(SimulateCase(one).time_ns);
    for (int j = 0; j < 4; ++j) {
      const Parameter& parameter = kParameters[cases.Below(std::size(kParameters))];
      Machine better = one.platform.machine;
      parameter.improve(better, cases.Scale(1.1, 4));
      const auto after = static_cast<double>(SimulateOn(one, better).time_ns);
      ++pairs;
      longer += after > 1.01 * before;
      worst = std::max(worst, after / before);
      EXPECT_LE(after, 1.3 * before + RoundingNs(one.schedule))
          << parameter.name << ", " << one.plan.name;
    }
  }
  std::printf("%d of %d took over 1 %% longer, the worst %.3f times as long\n", longer, pairs,
              worst);
  EXPECT_LE(longer, pairs / 50);
}

}  // namespace
}  // namespace agmm::test
