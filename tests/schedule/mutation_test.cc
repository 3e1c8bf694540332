// What planners put into a schedule is all needed: each schedule with one thing less is refused, and
// where it is small enough to run, each that is refused is seen to go wrong.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/interleave.h"
#include "tests/schedule/problems.h"

namespace agmm::test {
namespace {

struct Mutant {
  std::string name;
  Schedule schedule;
  bool must_fail = false;  // it lacks something; the others have a lag changed, and may live
};

void DropStep(std::vector<Step>& steps, int index) {
  steps.erase(steps.begin() + index);
  for (Step& step : steps) {
    auto* transfer = std::get_if<Transfer>(&step.op);
    if (transfer == nullptr || transfer->carrier < index) continue;
    transfer->carrier = transfer->carrier == index ? -1 : transfer->carrier - 1;
  }
}

std::vector<Mutant> MutantsOf(const Schedule& schedule) {
  std::vector<Mutant> mutants;
  auto add = [&](const std::string& name, bool must_fail) -> Schedule& {
    mutants.push_back({name, schedule, must_fail});
    return mutants.back().schedule;
  };
  for (Rank r = 0; r < static_cast<int>(schedule.ranks.size()); ++r) {
    for (int s = 0; s < static_cast<int>(schedule.ranks[r].size()); ++s) {
      const Step& step = schedule.ranks[r][s];
      const std::string where = absl::StrFormat("rank %d step %d", r, s);
      for (int i = 0; i < static_cast<int>(step.waits.size()); ++i) {
        const std::string wait = absl::StrFormat("%s wait %d (%d:%d lag %d)", where, i,
                                                 step.waits[i].slot.rank, step.waits[i].slot.index,
                                                 step.waits[i].lag);
        std::vector<Wait>& fewer = add("no " + wait, true).ranks[r][s].waits;
        fewer.erase(fewer.begin() + i);
        int& lag = add("other lag, " + wait, false).ranks[r][s].waits[i].lag;
        lag = 1 - lag;
      }
      for (int i = 0; i < static_cast<int>(step.signals.size()); ++i) {
        std::vector<Slot>& fewer =
            add(absl::StrFormat("no %s signal %d", where, i), true).ranks[r][s].signals;
        fewer.erase(fewer.begin() + i);
      }
      DropStep(add("no " + where, true).ranks[r], s);
    }
  }
  return mutants;
}

struct Totals {
  int mutants = 0, refused = 0, wrong = 0, hung = 0, harmless = 0;
};

struct Case {
  const char* algorithm;
  int ranks, nodes, chunks;
  Shape shape;
  bool run;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << absl::StrFormat("%s_%d_ranks_%d_nodes_%d_chunks_m%d_n%d_k%d", c.algorithm, c.ranks, c.nodes,
                          c.chunks, c.shape.m, c.shape.n, c.shape.k);
}

class Mutation : public testing::TestWithParam<Case> {};

TEST_P(Mutation, EverythingIsNeeded) {
  const Case& c = GetParam();
  const Problem problem = MakeProblem(c.ranks, c.shape);
  const Topology topology = MakeTopology(c.ranks, c.nodes);
  const absl::StatusOr<Schedule> plan = Plan(problem, topology, {c.algorithm, c.chunks});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(Verify(problem, topology, *plan), absl::OkStatus());
  if (c.run) {
    ASSERT_EQ(Interleaver(problem, *plan).Explore(50), Outcome::kExact);
  }
  Totals totals;
  for (const Mutant& mutant : MutantsOf(*plan)) {
    ++totals.mutants;
    const absl::Status verdict = Verify(problem, topology, mutant.schedule);
    EXPECT_FALSE(mutant.must_fail && verdict.ok()) << mutant.name;
    if (!verdict.ok()) ++totals.refused;
    if (!c.run) continue;
    const Outcome outcome = Interleaver(problem, mutant.schedule).Explore(verdict.ok() ? 50 : 5);
    if (outcome == Outcome::kExact) ++totals.harmless;
    if (outcome == Outcome::kWrong) ++totals.wrong;
    if (outcome == Outcome::kHang) ++totals.hung;
    EXPECT_EQ(verdict.ok(), outcome == Outcome::kExact)
        << mutant.name << " ends " << static_cast<int>(outcome) << "\n"
        << verdict << "\n"
        << Print(problem, mutant.schedule);
  }
  std::printf("%d mutants, %d refused", totals.mutants, totals.refused);
  if (c.run) {
    std::printf("; run: %d wrong, %d hung, %d exact", totals.wrong, totals.hung, totals.harmless);
  }
  std::printf("\n");
}

INSTANTIATE_TEST_SUITE_P(
    Run, Mutation,
    testing::Values(Case{"serial", 2, 2, 1, {5, 4, 2}, true}, Case{"serial", 3, 1, 1, {6, 5, 3}, true},
                    Case{"ring", 2, 1, 1, {4, 4, 2}, true}, Case{"ring", 2, 2, 2, {5, 4, 2}, true},
                    Case{"ring", 3, 3, 1, {6, 6, 2}, true}, Case{"ring", 3, 1, 2, {7, 4, 2}, true},
                    Case{"direct", 2, 2, 2, {5, 4, 2}, true},
                    Case{"direct", 3, 1, 1, {6, 6, 2}, true},
                    Case{"direct", 3, 3, 2, {7, 4, 2}, true}));

INSTANTIATE_TEST_SUITE_P(
    Refuse, Mutation,
    testing::Values(Case{"serial", 8, 2, 1, {33, 40, 9}, false},
                    Case{"ring", 4, 2, 3, {33, 40, 9}, false},
                    Case{"ring", 8, 4, 2, {33, 40, 9}, false},
                    Case{"direct", 5, 5, 3, {33, 40, 9}, false},
                    Case{"direct", 8, 4, 2, {33, 40, 9}, false}));

}  // namespace
}  // namespace agmm::test
