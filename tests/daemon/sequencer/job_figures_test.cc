#include "daemon/sequencer/figures.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

constexpr char kSpec[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";

class JobFigures : public ::testing::Test {
 protected:
  ScheduleFacts Facts(const std::string& algorithm) const {
    return FactsOf(problem_, topology_, *Plan(problem_, topology_, {algorithm, 1}));
  }
  // Each rank's multiply runs from start_us to end_us, everything else before it.
  RankReports Serial(const ScheduleFacts& facts,
                     std::vector<std::pair<double, double>> times) const {
    RankReports reports;
    for (size_t rank = 0; rank < times.size(); ++rank) {
      v1::RankReport& report = reports[problem_.mesh.ranks[rank]];
      report.add_epoch_us(times[rank].second);
      for (int step = 0; step < facts.step_counts[rank]; ++step) {
        const bool multiply = step == facts.multiplies[rank];
        v1::StepTime* time = report.add_steps();
        time->set_start_us(multiply ? times[rank].first : 1);
        time->set_end_us(multiply ? times[rank].second : 2);
      }
    }
    return reports;
  }
  const Problem problem_ = *ParseProblem(kSpec, *ParseMesh("x=2", {5, 3}), {8, 6, 4}, DType::kF32);
  const Topology topology_{{0, 1}};
};

TEST_F(JobFigures, BytesAreCountedByPath) {
  for (const char* algorithm : {"serial", "ring", "direct"}) {
    const ScheduleFacts apart = Facts(algorithm);
    EXPECT_EQ(apart.network_bytes, 8 * 4 * 4) << algorithm;  // each half of A to the other rank
    EXPECT_EQ(apart.memory_bytes, 0);
    const ScheduleFacts together =
        FactsOf(problem_, {{0, 0}}, *Plan(problem_, {{0, 0}}, {algorithm, 1}));
    EXPECT_EQ(together.memory_bytes, 8 * 4 * 4) << algorithm;
    EXPECT_EQ(together.network_bytes, 0);
    const Topology islands = {{0, 0}, {0, 1}};
    const ScheduleFacts staged =
        FactsOf(problem_, islands, *Plan(problem_, islands, {algorithm, 1}));
    EXPECT_EQ(staged.staged_bytes, 8 * 4 * 4) << algorithm;
    EXPECT_EQ(staged.memory_bytes + staged.network_bytes, 0);
  }
  // No copies, but half of A is loaded from the other rank's memory.
  const ScheduleFacts peer = FactsOf(problem_, {{0, 0}}, *Plan(problem_, {{0, 0}}, {"peer", 1}));
  EXPECT_EQ(peer.memory_bytes, 8 * 4 * 4);
  EXPECT_EQ(peer.network_bytes, 0);
  EXPECT_FALSE(peer.transfers) << "joins do not count as transfers";
}

TEST_F(JobFigures, TheSlowestRankCountsEpochByEpochWithoutTheFirst) {
  RankReports reports;
  for (const auto& [rank, times] :
       std::map<int, std::vector<double>>{{3, {9000, 4, 1, 5}}, {5, {8000, 3, 2, 9}}}) {
    for (double time : times) reports[rank].add_epoch_us(time);
  }
  const ScheduleFacts facts = Facts("ring");
  const v1::JobFigures figures = FiguresOf(problem_, facts, {3, 1}, reports);
  EXPECT_EQ(figures.time_us(), 4);  // of 4, 2, 9
  EXPECT_EQ(figures.flop_count(), 2 * 8 * 6 * 4);
  EXPECT_DOUBLE_EQ(figures.tflops(), 2 * 8 * 6 * 4 / 4e-6 * 1e-12);
  EXPECT_DOUBLE_EQ(figures.overlap(), 3.0 / 4);
  EXPECT_EQ(FiguresOf(problem_, facts, {3, 9}, reports).overlap(), 9.0 / 4) << "not capped";
  EXPECT_EQ(FiguresOf(problem_, facts, {}, reports).overlap(), 0) << "no serial run is known";
  reports[3].add_epoch_us(1);
  EXPECT_EQ(FiguresOf(problem_, facts, {}, reports).time_us(), 0) << "epochs cannot be matched";
  reports.erase(3);
  EXPECT_EQ(FiguresOf(problem_, facts, {}, reports).time_us(), 0) << "a rank has no report";
}

TEST_F(JobFigures, ThePartsOfASerialRunAreTheSlowestRanks) {
  const ScheduleFacts facts = Facts("serial");
  RankReports reports = Serial(facts, {{3000, 5000}, {2000, 7000}});
  const PartTimes parts = PartTimesOf(facts, problem_.mesh, reports);
  EXPECT_EQ(parts.gemm_us, 5000);
  EXPECT_EQ(parts.gather_us, 3000);
  reports[5].mutable_steps()->RemoveLast();
  EXPECT_EQ(PartTimesOf(facts, problem_.mesh, reports).gemm_us, 0) << "other steps than planned";
  // A rank with several multiplies does not run an unfused product.
  const ScheduleFacts ring = Facts("ring");
  EXPECT_EQ(PartTimesOf(ring, problem_.mesh, Serial(ring, {{1, 2}, {1, 2}})).gemm_us, 0);
}

TEST_F(JobFigures, TheGatherAloneIsTheTimeOfTransfersOnlyWhereThatIsLess) {
  const ScheduleFacts facts =
      FactsOf(problem_, topology_, *Plan(problem_, topology_, GatherAlone()));
  EXPECT_EQ(facts.network_bytes, 8 * 4 * 4) << "each half of A to the other rank";
  RankReports reports;
  for (int rank : {3, 5}) reports[rank].add_epoch_us(rank * 100);
  const PartTimes parts = PartTimesOf(facts, problem_.mesh, reports);
  EXPECT_EQ(parts.gemm_us, 0);
  EXPECT_EQ(parts.gather_us, 500);
  EXPECT_EQ(FiguresOf(problem_, facts, parts, reports).flop_count(), 0);
  const absl::Time end = absl::FromUnixSeconds(1'000'000);
  const Baseline serial{{3000, 900}, 7, /*generation=*/2, end}, gather{parts, 8, 2, end};
  EXPECT_EQ(Combine({serial, gather}, 2, end).parts.gather_us, 500);
  EXPECT_EQ(Combine({serial, gather}, 2, end).parts.gemm_us, 3000);
  EXPECT_EQ(Combine({serial, gather}, 2, end).job, 7u);
  EXPECT_EQ(Combine({serial, gather}, 3, end).parts.gather_us, 900) << "of other nodes";
  EXPECT_EQ(Combine({serial, gather}, 2, end + absl::Minutes(11)).parts.gather_us, 900);
  EXPECT_EQ(Combine({serial, {{0, 950}, 8, 2, end}}, 2, end).parts.gather_us, 900);
  EXPECT_EQ(Combine({{{3000, 0}, 7, 2, end}, gather}, 2, end).parts.gather_us, 0)
      << "nothing has to be gathered";
}

TEST_F(JobFigures, ABaselineIsStaleOnceItMayNotHold) {
  const absl::Time end = absl::FromUnixSeconds(1'000'000);
  const Baseline baseline{{5000, 3000}, 7, /*generation=*/2, end};
  // Figures of a job whose epochs take `time_us`.
  const auto figures_of = [&](double time_us) {
    RankReports reports;
    for (int rank : {3, 5}) reports[rank].add_epoch_us(time_us);
    return FiguresOf(problem_, Facts("ring"), baseline.parts, reports);
  };
  const v1::JobFigures figures = figures_of(4800);
  EXPECT_EQ(StaleText(baseline, figures, 2, end + absl::Minutes(10)), "");
  EXPECT_EQ(StaleText(baseline, figures, 3, end), "nodes have come or gone since");
  EXPECT_EQ(StaleText(baseline, figures, 2, end + absl::Minutes(11)), "they are older than 10m");
  EXPECT_EQ(StaleText(baseline, figures_of(4000), 2, end),
            "this job took less time than T_gemm, so the load has changed since");
  const Baseline slow_link{{3000, 9000}, 7, /*generation=*/2, end};
  RankReports reports;
  for (int rank : {3, 5}) reports[rank].add_epoch_us(4000);
  EXPECT_EQ(
      StaleText(slow_link, FiguresOf(problem_, Facts("ring"), slow_link.parts, reports), 2, end),
      "this job took less time than T_ag, so the gather of serial is not the fastest, or the link "
      "or the load has changed since");
  EXPECT_FALSE(Differ({5000, 3000}, {5900, 2500}));
  EXPECT_TRUE(Differ({5000, 3000}, {5000, 4000}));
  EXPECT_TRUE(Differ({5000, 0}, {6500, 0}));
}

TEST_F(JobFigures, WithoutATransferThereIsNoGatherToTime) {
  const Problem local =
      *ParseProblem("A[M_x, K] * B[K, N] -> C[M_x, N]", problem_.mesh, {8, 6, 4}, DType::kF32);
  const ScheduleFacts facts = FactsOf(local, topology_, *Plan(local, topology_, {"serial", 1}));
  const PartTimes parts = PartTimesOf(facts, local.mesh, Serial(facts, {{10, 5010}, {10, 4010}}));
  EXPECT_EQ(parts.gemm_us, 5000);
  EXPECT_EQ(parts.gather_us, 0);
}

}  // namespace
}  // namespace agmm
