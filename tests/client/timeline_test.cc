#include "client/ctl/timeline.h"

#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Columns beside the cells: "rank 0  " and "  100 %".
constexpr size_t kCells = 50, kColumns = 8 + kCells + 7;

Problem ProblemOn(int ranks) {
  return *ParseProblem(kDefaultSpec, *ParseMesh("x=" + std::to_string(ranks)), {64, 64, 64},
                       DType::kF32);
}

// Ranks without steps, which all run from 0 to `end_ns`.
struct Epoch {
  Epoch(int ranks, int64_t end_ns) : problem(ProblemOn(ranks)) {
    schedule.ranks.resize(ranks);
    simulation.time_ns = end_ns;
    simulation.steps.resize(ranks);
    simulation.ranks.assign(ranks, {0, end_ns, 0});
  }
  void Add(Rank rank, StepOp op, const StepTimes& times) {
    schedule.ranks[rank].push_back({std::move(op)});
    simulation.steps[rank].push_back(times);
  }
  std::vector<std::string> Lines(size_t columns = kColumns) const {
    return absl::StrSplit(TimelineText(problem, schedule, simulation, columns), '\n',
                          absl::SkipEmpty());
  }

  Problem problem;
  Schedule schedule;
  Simulation simulation;
};

Transfer SendTo(Rank from, Rank to) {
  Transfer transfer;
  transfer.from.rank = from;
  transfer.to = {Place{to}};
  return transfer;
}

TEST(Timeline, AColumnHasTheLetterOfWhatTookMostOfItsTime) {
  Epoch epoch(2, 50'000);  // 1 us a column
  epoch.Add(0, Multiply(), {0, 0, 10'000, 10'000});
  epoch.Add(0, Multiply(), {10'000, 20'400, 30'600, 30'600});
  epoch.simulation.ranks[0].multiply_ns = 20'200;
  EXPECT_EQ(epoch.Lines()[0], "rank 0  " + std::string(10, 'M') + std::string(10, '.') +
                                  std::string(11, 'M') + std::string(19, '.') + "   40 %");
  EXPECT_EQ(epoch.Lines()[1], "rank 1  " + std::string(50, '.') + "    0 %");
}

TEST(Timeline, ATransferCountsAtBothEndsUntilItArrivesUnlessARankMultiplies) {
  Epoch epoch(3, 50'000);
  epoch.Add(0, SendTo(0, 1), {0, 0, 10'000, 20'000});
  epoch.Add(0, Multiply(), {0, 5'000, 15'000, 15'000});
  EXPECT_THAT(epoch.Lines()[0], HasSubstr("  -----MMMMMMMMMM-----...."));
  EXPECT_THAT(epoch.Lines()[1], HasSubstr("  --------------------...."));
  EXPECT_THAT(epoch.Lines()[2], Not(HasSubstr("-")));
}

TEST(Timeline, MultipliesAtTheSameTimeCountOnce) {
  Epoch epoch(1, 50'000);
  epoch.Add(0, Multiply(), {0, 0, 400, 400});
  epoch.Add(0, Multiply(), {0, 0, 400, 400});
  EXPECT_THAT(epoch.Lines()[0], HasSubstr("rank 0  ...."));
}

TEST(Timeline, TheLegendNamesAdditionsOnlyIfThereAreSome) {
  Epoch epoch(1, 50'000);
  EXPECT_EQ(epoch.Lines()[2], "        M multiply  - transfer only  . wait");
  epoch.Add(0, Reduce(), {0, 0, 50'000, 50'000});
  EXPECT_THAT(epoch.Lines()[0], HasSubstr("  ++++"));
  EXPECT_THAT(epoch.Lines()[2], HasSubstr("M multiply  + add  - transfer only"));
}

TEST(Timeline, TheAxisHasRoundTimesAtTheirColumns) {
  EXPECT_EQ(Epoch(1, 50'000).Lines()[1], "    us  |0        |10       |20       |30       |40");
  EXPECT_EQ(Epoch(1, 90'000).Lines()[1], "    us  |0         |20        |40        |60        |80");
  EXPECT_EQ(Epoch(1, 1'000).Lines()[1], "    us  |0        |0.2      |0.4      |0.6      |0.8");
  EXPECT_EQ(Epoch(1, 30).Lines()[1], "    us  |0               |0.01           |0.02");
}

TEST(Timeline, LinesFitIntoTheColumns) {
  for (const int64_t end_ns : {1, 999, 123'456, 98'765'432}) {
    Epoch epoch(12, end_ns);
    for (const size_t columns : {60, 80, 120})
      for (const std::string& line : epoch.Lines(columns)) EXPECT_LE(line.size(), columns) << line;
  }
}

TEST(Timeline, MoreThanSixteenRanksAreCounted) {
  const std::vector<std::string> lines = Epoch(19, 1000).Lines();
  ASSERT_EQ(lines.size(), 16 + 3);
  EXPECT_THAT(lines[15], HasSubstr("rank 15"));
  EXPECT_EQ(lines.back(), "... 3 more ranks");
  EXPECT_EQ(Epoch(16, 1000).Lines().size(), 16 + 2);
}

TEST(Timeline, StepsThatBeginBeforeTheEpochOrEndAfterItAreCut) {
  Epoch epoch(2, 50'000);
  epoch.Add(0, SendTo(0, 1), {-9'000, -8'000, 2'000, 2'000});
  epoch.Add(0, SendTo(0, 1), {0, 48'000, 60'000, 60'000});
  EXPECT_EQ(epoch.Lines()[1], "rank 1  --" + std::string(46, '.') + "--    0 %");
}

TEST(Timeline, TimeOutsideTheEpochOfARankIsBlank) {
  Epoch epoch(2, 50'000);
  EXPECT_THAT(epoch.Lines().back(), Not(HasSubstr("blank")));
  epoch.simulation.ranks[1] = {10'000, 40'000, 0};
  epoch.Add(0, SendTo(0, 1), {0, 0, 20'000, 20'000});
  EXPECT_EQ(epoch.Lines()[1], "rank 1  " + std::string(10, ' ') + std::string(10, '-') +
                                  std::string(20, '.') + std::string(10, ' ') + "    0 %");
  EXPECT_THAT(epoch.Lines().back(), HasSubstr("  . wait  blank: another epoch"));
}

TEST(Timeline, OfNoTimeIsEmpty) { EXPECT_EQ(Epoch(2, 0).Lines().size(), 0); }

}  // namespace
}  // namespace agmm
