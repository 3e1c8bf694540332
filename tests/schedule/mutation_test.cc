// Every part of a planned schedule is needed: Verify refuses each schedule with one part less, and
// if a refused schedule is small enough to run, some run is wrong.
#include <gtest/gtest.h>

#include <cstdio>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/interleave.h"
#include "tests/schedule/mutants.h"
#include "tests/schedule/problems.h"
#include "tests/schedule/random_schedule.h"

namespace agmm::test {
namespace {

struct Totals {
  int mutants = 0, refused = 0, wrong = 0, hung = 0, exact = 0;

  void Count(bool accepted, Outcome outcome) {
    ++mutants;
    if (!accepted) ++refused;
    if (outcome == Outcome::kExact) ++exact;
    if (outcome == Outcome::kWrong) ++wrong;
    if (outcome == Outcome::kHang) ++hung;
  }
  void Print() const {
    std::printf("%d mutants, %d refused; run: %d wrong, %d hung, %d exact\n", mutants, refused,
                wrong, hung, exact);
  }
};

struct Case {
  const char* algorithm;
  int ranks, nodes, chunks;
  Shape shape;
  bool run;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << absl::StrFormat("%s_%d_ranks_%d_nodes_%d_chunks_m%d_n%d_k%d", c.algorithm, c.ranks,
                          c.nodes, c.chunks, c.shape.m, c.shape.n, c.shape.k);
}

class Mutation : public testing::TestWithParam<Case> {};

TEST_P(Mutation, EveryWaitAndSignalIsNeeded) {
  const Case& c = GetParam();
  const Problem problem = MakeProblem(c.ranks, c.shape);
  const Topology topology = MakeTopology(c.ranks, c.nodes);
  const absl::StatusOr<Schedule> plan = Plan(problem, topology, {c.algorithm, c.chunks});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(Verify(problem, topology, *plan), absl::OkStatus());
  if (c.run) {
    ASSERT_EQ(Interleaver(problem, *plan).Explore(50), Outcome::kExact);
  }
  std::vector<Mutant> mutants = WithOneLess(*plan);
  for (const Mutant& mutant : mutants) {
    EXPECT_FALSE(Verify(problem, topology, mutant.schedule).ok()) << mutant.name;
  }
  if (!c.run) {
    std::printf("%d mutants\n", static_cast<int>(mutants.size()));
    return;
  }
  for (Mutant& mutant : WithAnotherLag(*plan)) mutants.push_back(std::move(mutant));
  Totals totals;
  for (const Mutant& mutant : mutants) {
    const absl::Status verdict = Verify(problem, topology, mutant.schedule);
    const Outcome outcome = Interleaver(problem, mutant.schedule).Explore(verdict.ok() ? 50 : 5);
    totals.Count(verdict.ok(), outcome);
    EXPECT_EQ(verdict.ok(), outcome == Outcome::kExact)
        << mutant.name << " ends " << static_cast<int>(outcome) << "\n"
        << verdict << "\n"
        << Print(problem, mutant.schedule);
  }
  totals.Print();
}

INSTANTIATE_TEST_SUITE_P(
    Run, Mutation,
    testing::Values(
        Case{"serial", 2, 2, 1, {5, 4, 2}, true}, Case{"serial", 3, 1, 1, {6, 5, 3}, true},
        Case{"ring", 2, 1, 1, {4, 4, 2}, true}, Case{"ring", 2, 2, 2, {5, 4, 2}, true},
        Case{"ring", 3, 3, 1, {6, 6, 2}, true}, Case{"ring", 3, 1, 2, {7, 4, 2}, true},
        Case{"direct", 2, 2, 2, {5, 4, 2}, true}, Case{"direct", 3, 1, 1, {6, 6, 2}, true},
        Case{"direct", 3, 3, 2, {7, 4, 2}, true}, Case{"peer", 2, 1, 2, {5, 4, 2}, true},
        Case{"peer", 3, 1, 1, {6, 6, 2}, true}, Case{"peer", 3, 1, 2, {7, 4, 2}, true},
        Case{"peer", 3, 1, 1, {2, 2, 2}, true}));

INSTANTIATE_TEST_SUITE_P(Refuse, Mutation,
                         testing::Values(Case{"serial", 8, 2, 1, {33, 40, 9}, false},
                                         Case{"ring", 4, 2, 3, {33, 40, 9}, false},
                                         Case{"ring", 8, 4, 2, {33, 40, 9}, false},
                                         Case{"direct", 5, 5, 3, {33, 40, 9}, false},
                                         Case{"direct", 8, 4, 2, {33, 40, 9}, false},
                                         Case{"peer", 5, 1, 3, {33, 40, 9}, false},
                                         Case{"peer", 8, 1, 1, {5, 7, 9}, false}));

// A schedule that Verify refuses though every executor may run it exactly, and the reason.
struct Exception {
  const char* message;
  const char* reason;
  bool among_first;  // of the seeds from 1 on
};
constexpr Exception kExceptions[] = {
    {"sum on chip", "the steps of a tile pass stand next to each other, whatever is between", true},
    // These tests run in f32; in other dtypes the bits differ.
    {"where finished elements belong", "a sum over all of K is a finished element in f32", false},
};

// Random schedules with random mistakes: Verify refuses exactly the schedules that go wrong, and
// the listed exceptions.
TEST(Mistakes, AreRefusedWithTheirPlace) {
  const uint64_t first = TestSeed();
  constexpr int kSeeds = 900;
  Totals totals;
  std::vector<int> excepted(std::size(kExceptions), 0);
  std::vector<uint64_t> example(std::size(kExceptions), 0);
  std::vector<uint64_t> seeds(kSeeds);
  std::iota(seeds.begin(), seeds.end(), first);
  for (uint64_t seed : seeds) {
    std::mt19937_64 random(seed);
    const int ranks = 2 + static_cast<int>(random() % 2);
    const Problem problem = MakeProblem(ranks, {3, 4, random() % 3 == 0 ? 70 : 3});
    const Topology topology = MakeTopology(ranks, random() % 2 ? ranks : 1);
    const Schedule schedule = Close(RandomSchedule(problem, topology, random));
    const Mutant mutant = Mistaken(schedule, random);
    const absl::Status verdict = Verify(problem, topology, mutant.schedule);
    const Outcome outcome = Interleaver(problem, mutant.schedule).Explore(5);
    totals.Count(verdict.ok(), outcome);
    bool expected = verdict.ok() == (outcome == Outcome::kExact);
    for (size_t i = 0; i < excepted.size() && !expected && !verdict.ok(); ++i) {
      if (!absl::StrContains(verdict.message(), kExceptions[i].message)) continue;
      ++excepted[i];
      example[i] = seed;
      expected = true;
    }
    ASSERT_TRUE(expected) << absl::StrFormat("AGMM_SEED=%d, ", seed) << mutant.name << " ends "
                          << static_cast<int>(outcome) << "\n"
                          << verdict << "\n"
                          << Print(problem, mutant.schedule);
  }
  totals.Print();
  for (size_t i = 0; i < excepted.size(); ++i) {
    std::printf("%d refused and exact, such as seed %d: %s\n", excepted[i],
                static_cast<int>(example[i]), kExceptions[i].reason);
    if (first == 1 && kExceptions[i].among_first) {
      EXPECT_GT(excepted[i], 0) << "no exception: " << kExceptions[i].message;
    }
  }
}

}  // namespace
}  // namespace agmm::test
