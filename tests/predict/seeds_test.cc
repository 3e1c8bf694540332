// Published figures beside ours: they agree, or the row says why not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "absl/strings/match.h"
#include "kernels/predict/seeds.h"

namespace agmm::test {
namespace {

Machine MachineOf(int wrap_multiple, double one_way, double latency_ns, double memory,
                  double flops_per_ns) {
  Machine machine;
  machine.wrap_multiple = wrap_multiple;
  machine.within.rates = {.one_way = one_way, .two_way = 2 * one_way, .latency_ns = latency_ns};
  machine.device.memory = memory;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    machine.device.gemm.push_back({dtype, 1e9, flops_per_ns});
  return machine;
}

SeedMachines FourMachines() {
  return {.tpu_v4p = MachineOf(4, 45, 1000, 1200, 275e3),
          .tpu_v5e = MachineOf(16, 45, 1000, 810, 197e3),
          .tpu_v5p = MachineOf(4, 90, 1000, 2800, 459e3),
          .h100 = MachineOf(0, 450, 0, 3350, 799064)};
}

std::vector<SeedRow> AllRows() { return SeedRows(FourMachines(), FiguresOfForms()); }

// The rows whose source and question contain these words.
std::vector<SeedRow> RowsOf(const std::string& source, const std::string& question = "") {
  std::vector<SeedRow> rows;
  for (const SeedRow& row : AllRows())
    if (absl::StrContains(row.source, source) && absl::StrContains(row.question, question))
      rows.push_back(row);
  return rows;
}

double OursOf(const std::string& source, const std::string& question) {
  const std::vector<SeedRow> rows = RowsOf(source, question);
  EXPECT_EQ(rows.size(), 1) << source << ": " << question;
  return rows.empty() ? NAN : rows[0].ours;
}

TEST(Seeds, AgreeWithinTheirDigitsOrSayWhy) {
  for (const SeedRow& row : AllRows()) {
    EXPECT_EQ(Agrees(row), row.why.empty()) << row.source << ": " << row.question << ": "
                                            << row.seed << " and " << row.ours << ", " << row.why;
    EXPECT_FALSE(absl::StrContains(row.why, '\n'));
  }
}

TEST(Seeds, HaveAFigureInEveryRow) {
  for (const SeedRow& row : AllRows()) {
    EXPECT_TRUE(std::isfinite(row.ours) && row.ours >= 0) << row.question;
    EXPECT_EQ(row.digit > 0, !std::isnan(row.seed)) << row.question;
  }
}

TEST(Seeds, DisagreeBeyondHalfOfTheLastDigit) {
  EXPECT_TRUE(Agrees({.seed = 11.6, .digit = 0.1, .ours = 11.64}));
  EXPECT_TRUE(Agrees({.seed = 11.6, .digit = 0.1, .ours = 11.55}));
  EXPECT_FALSE(Agrees({.seed = 11.6, .digit = 0.1, .ours = 11.66}));
  EXPECT_FALSE(Agrees({.seed = 11.6, .digit = 0.1, .ours = 11.54}));
  EXPECT_TRUE(Agrees({.seed = NAN, .ours = 1}));
}

TEST(Seeds, AreAllThere) {
  std::map<std::string, int> counts;
  for (const SeedRow& row : AllRows()) ++counts[row.source];
  const std::map<std::string, int> expected = {
      {"scaling book, quiz 2D sharding", 3},
      {"scaling book, quiz int8", 2},
      {"scaling book, latency and bandwidth", 3},
      {"scaling book, quiz 2", 5},
      {"scaling book, question 1", 1},
      {"scaling book, question 2", 3},
      {"scaling book, question 3", 1},
      {"scaling book, question 4", 21},
      {"scaling book, question 5", 9},
      {"scaling book, question 6", 6},
      {"scaling book, question 7", 5},
      {"scaling book, question 9", 1},
      {"scaling book, question 10", 6},
      {"Pallas:MGPU, collective matrix multiplication", 9}};
  EXPECT_EQ(counts, expected);
}

// In us. v5e wraps around an axis of 16 only, so 4x4 and 2x2 are lines.
TEST(Seeds, AnswerTheQuestionsWithoutAPrintedAnswer) {
  const double result_us = 2.0 * 4096 * 4096 / 4 * 3 / 4 / 45e3;
  EXPECT_NEAR(OursOf("question 6", "all-reduce C over y: communication"), 2 * result_us, 1e-6);
  EXPECT_NEAR(OursOf("question 6", "gather B over x: communication"), result_us, 1e-6);
  EXPECT_EQ(OursOf("question 6", "nothing: communication"), 0);
  EXPECT_NEAR(OursOf("question 6", "nothing: computation"), 43.6, 0.05);
  EXPECT_NEAR(OursOf("question 7", "which fit"), 268.4, 0.05);
  EXPECT_NEAR(OursOf("question 7", "do not fit"), 536.9, 0.05);
  EXPECT_NEAR(OursOf("question 7", "computation"), 174.4, 0.05);
  EXPECT_NEAR(OursOf("question 7", "reduce-scatter the output"), 35.0, 0.05);
  EXPECT_NEAR(OursOf("question 7", "reading the weights"), 331.4, 0.05);
  EXPECT_NEAR(OursOf("question 5", "1. A"), 37.4 + 248.6, 0.1);
  EXPECT_EQ(OursOf("question 5", "2. A"), OursOf("question 5", "1. A"));
  EXPECT_NEAR(OursOf("question 5", "3. A"), 37.4 + 2 * 248.6, 0.1);
  EXPECT_NEAR(OursOf("question 5", "4. A"), 2395.4, 0.1);
  // Strategy 1 takes 2DF/W while B is small, and strategy 2 4BF/W.
  EXPECT_NEAR(OursOf("question 4", "B = 1024, D = 8192: strategy 1"), 2982.6, 0.1);
  EXPECT_NEAR(OursOf("question 4", "B = 1024, D = 8192: strategy 2"), 745.7, 0.1);
}

TEST(Seeds, ShowWhatWasCountedAndSimulated) {
  SimulatedFigures figures = FiguresOfForms();
  figures.elements.gather_one_way = 7;
  figures.pallas_ring_us = {1, 2, 3};
  int changed = 0;
  const std::vector<SeedRow> before = AllRows();
  const std::vector<SeedRow> after = SeedRows(FourMachines(), figures);
  for (size_t i = 0; i < after.size(); ++i) {
    if (after[i].ours == before[i].ours) continue;
    ++changed;
    EXPECT_TRUE(absl::StrContains(after[i].source, "question 10") ||
                absl::StrContains(after[i].question, ": ring"))
        << after[i].question;
  }
  // Scalars of a gather, its two ratios, and three sizes of a ring.
  EXPECT_EQ(changed, 6);
}

}  // namespace
}  // namespace agmm::test
