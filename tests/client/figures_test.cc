#include "client/ctl/matmul_figures.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/schedule/spec.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Problem OnTwoRanks() {
  const Mesh mesh = *ParseMesh("x=2", {5, 3});
  return *ParseProblem(kDefaultSpec, mesh, {8, 6, 4}, DType::kF32);
}

class Figures : public ::testing::Test {
 protected:
  const Problem problem_ = OnTwoRanks();
};

TEST_F(Figures, TheSlowestRankCountsEpochByEpoch) {
  v1::Job job;
  for (const auto& [rank, first, second] :
       {std::tuple(3, 1000.0, 4000.0), std::tuple(5, 3000.0, 2000.0)}) {
    v1::RankReport* report = job.add_ranks();
    report->set_rank(rank);
    report->add_epoch_us(first);
    report->add_epoch_us(second);
  }
  EXPECT_THAT(SlowestRankMs(job, problem_.mesh), ElementsAre(3, 4));
  job.mutable_ranks(0)->add_epoch_us(1);
  EXPECT_THAT(SlowestRankMs(job, problem_.mesh), IsEmpty()) << "epochs cannot be matched";
  job.mutable_ranks()->RemoveLast();
  EXPECT_THAT(SlowestRankMs(job, problem_.mesh), IsEmpty()) << "a rank has no report";
}

TEST_F(Figures, MediansDropTheWarmUp) {
  EXPECT_EQ(Median({}), std::nullopt);
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({9, 1, 5, 7}), 6);
  EXPECT_THAT(AfterWarmUp({100, 1, 2}), ElementsAre(1, 2));
  EXPECT_THAT(AfterWarmUp({100}), ElementsAre(100));
}

TEST_F(Figures, SpreadIsHalfOfTheMiddleHalf) {
  EXPECT_EQ(SpreadOf({1, 2}), std::nullopt);
  EXPECT_DOUBLE_EQ(*SpreadOf({13, 8, 10, 9, 11}), 1.0 / 10) << "between 9 and 11";
  EXPECT_DOUBLE_EQ(*SpreadOf({2, 4, 1, 3}), 0.75 / 2.5) << "between 1.75 and 3.25";
}

TEST_F(Figures, RunsKeepTheirParts) {
  v1::Job job;
  for (int rank : {3, 5}) {
    v1::RankReport* report = job.add_ranks();
    report->set_rank(rank);
    report->add_epoch_us(1000.0 * rank);
  }
  job.mutable_figures()->set_gemm_us(3000);
  PartRuns runs;
  runs.AddSerial(job, problem_.mesh);
  EXPECT_THAT(runs.unfused_ms, ElementsAre(5));
  EXPECT_THAT(runs.gemm_ms, ElementsAre(3));
  EXPECT_THAT(runs.gather_ms, IsEmpty()) << "0 is not known";
  runs.AddTransfers(job, problem_.mesh);
  EXPECT_EQ(runs.GatherMs(), std::nullopt) << "an older daemon has multiplied, too";
  job.mutable_options()->set_transfers_only(true);
  runs.AddTransfers(job, problem_.mesh);
  EXPECT_EQ(runs.GatherMs(), 5);
}

TEST_F(Figures, TheGatherAloneIsTheFasterOneAndOneBoundHoldsForAll) {
  const PartRuns parts = {{16, 16, 16}, {8, 8, 8}, {12, 12, 12}, {9, 9, 9}};
  for (double fused_ms : {8.0, 10.0, 20.0}) {
    const Comparison c = FiguresOf(problem_, {fused_ms, fused_ms, fused_ms}, parts).comparison;
    EXPECT_EQ(c.gather_ms, 9);
    EXPECT_EQ(c.lower_bound_ms, 9);
    EXPECT_DOUBLE_EQ(*c.ratio, 9 / fused_ms) << "above 1, too: nothing is capped";
  }
  EXPECT_EQ((PartRuns{{}, {}, {6}, {9}}.GatherMs()), 6);
}

TEST_F(Figures, CompareFollowsTheDefinitions) {
  const Comparison c = Compare(10, 16, 8, 6);
  EXPECT_EQ(c.lower_bound_ms, 8);
  EXPECT_DOUBLE_EQ(*c.ratio, 0.8);
  EXPECT_DOUBLE_EQ(*c.speedup, 1.6);
  EXPECT_DOUBLE_EQ(*c.efficiency, 1 - (10.0 - 8) / (16 - 8));
}

TEST_F(Figures, EfficiencyNeedsSomethingToHide) {
  EXPECT_EQ(Compare(8, 8.39, 8, 0.3).efficiency, std::nullopt) << "less than 5 % of T_gemm";
  EXPECT_TRUE(Compare(8, 8.41, 8, 0.3).efficiency.has_value());
  EXPECT_EQ(Compare(10, 16, {}, {}).ratio, std::nullopt);
  EXPECT_EQ(Compare(std::nullopt, 16, 8, 6).ratio, std::nullopt);
  EXPECT_EQ(Compare(10, std::nullopt, 8, 6).speedup, std::nullopt);
}

TEST_F(Figures, OnlyTheSpreadOfRunsIndicatesABusyMachine) {
  EXPECT_EQ(BusySign({10, 10, 10}, "runs"), std::nullopt);
  EXPECT_EQ(BusySign({7.5, 10, 12.5}, "runs"), std::nullopt);
  EXPECT_EQ(BusySign({4, 10, 16}, "runs"), "half of the runs differ by more than +-30 %");
  EXPECT_EQ(BusySign({0.2, 0.5, 0.8}, "runs"), std::nullopt) << "short times vary";
  EXPECT_EQ(BusySign({4, 16}, "runs"), std::nullopt) << "too few runs to judge";
  const agmm::Figures faster = FiguresOf(problem_, {6, 6, 6}, {{16, 16, 16}, {8, 8, 8}});
  EXPECT_EQ(faster.busy, std::nullopt) << "R and E above 1 do not show a busy machine";
}

class SampledErrorTest : public ::testing::Test {
 protected:
  std::unique_ptr<MatrixReader> File(const std::string& name, int64_t rows, int64_t cols,
                                     const std::vector<float>& values) {
    const std::string path = folder_ / name;
    auto file = *NpyWriter::Create(path, rows, cols, DType::kF32);
    EXPECT_TRUE(file->Append(rows * cols, values.data()).ok() && file->Commit().ok());
    return *OpenNpy(path);
  }
  const TempFolder folder_{"sampled_error"};
};

TEST_F(SampledErrorTest, IsRelativeToTheExactProduct) {
  const auto a = File("a", 2, 3, {1, 2, 3, 4, 5, 6}), b = File("b", 3, 1, {1, 1, -1});
  EXPECT_EQ(SampledError(*a, *b, *File("exact", 2, 1, {0, 3}))->relative, 0);
  EXPECT_DOUBLE_EQ(*SampledError(*a, *b, *File("near", 2, 1, {0, 3.75}))->relative, 0.25);
}

TEST_F(SampledErrorTest, LeavesOutAndCountsNonFiniteElements) {
  const float inf = INFINITY;
  const auto a = File("a", 2, 3, {1, 2, 3, 4, 5, 6}), b = File("b", 3, 1, {1, 1, -1});
  const SampleError one = *SampledError(*a, *b, *File("one", 2, 1, {inf, 3.75}));
  EXPECT_DOUBLE_EQ(*one.relative, 0.25);
  EXPECT_EQ(one.elements, 2);
  EXPECT_EQ(one.non_finite, 1);
  const SampleError all = *SampledError(*a, *b, *File("all", 2, 1, {inf, NAN}));
  EXPECT_EQ(all.relative, std::nullopt);
  EXPECT_EQ(all.non_finite, 2);
  // If the inputs are not finite, their product in f64 is not finite either.
  const auto nan = File("nan", 2, 3, {NAN, 2, 3, 4, 5, 6});
  EXPECT_EQ(SampledError(*nan, *b, *File("c", 2, 1, {0, 3}))->non_finite, 1);
}

TEST_F(SampledErrorTest, SeesTheFirstAndTheLastElementOfALargeProduct) {
  const int64_t m = 100, n = 150;
  const auto a = File("a", m, 1, std::vector<float>(m, 1)),
             b = File("b", 1, n, std::vector<float>(n, 1));
  for (int64_t wrong : {int64_t{0}, m * n - 1}) {
    std::vector<float> c(m * n, 1);
    c[wrong] = 2;
    EXPECT_DOUBLE_EQ(*SampledError(*a, *b, *File("c", m, n, c))->relative, 1.0 / 32)
        << "1 of 1024 elements";
  }
}

}  // namespace
}  // namespace agmm
