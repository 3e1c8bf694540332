#include "daemon/measure/survey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <variant>

#include "daemon/sequencer/planning.h"
#include "kernels/schedule/schedule.h"

namespace agmm::measure {
namespace {

using testing::ElementsAre;
using Kind = Probe::Kind;

Site SiteOf(std::vector<int> nodes, std::vector<int> islands, int64_t max_bytes = 64 << 20) {
  Site site;
  site.kind_of_rank.assign(nodes.size(), "cpu");
  site.node_of_rank = std::move(nodes);
  site.island_of_rank = std::move(islands);
  site.max_bytes = max_bytes;
  return site;
}

// Runs the survey; `time_ns` is the time of each rank.
std::vector<Probe> RunAll(Survey* survey, const std::function<double(const Probe&)>& time_ns) {
  std::vector<Probe> probes;
  while (const std::optional<Probe> probe = survey->Next()) {
    EXPECT_LT(probes.size(), 1000u);
    probes.push_back(*probe);
    EpochTimes times;
    for (int rank : probe->ranks) times[rank] = time_ns(*probe);
    survey->Add(times, "a wire");
  }
  return probes;
}

double Linear(const Probe& probe, double bytes_per_ns, double flops_per_ns) {
  const double size = static_cast<double>(probe.size);
  if (probe.kind == Kind::kProduct) return 1000 + 2 * size * size * size / flops_per_ns;
  if (probe.width > 0)
    return 1000 + 2.0 * kDepth * static_cast<double>(probe.width) * size / flops_per_ns;
  return 50'000 + size / bytes_per_ns;
}

TEST(Survey, MeasuresEachDirectionOfEachPairOfNodes) {
  Survey survey(SiteOf({0, 0, 1, 2}, {0, 0, 0, 0}));
  std::set<std::vector<int>> one_way, both;
  for (const Series& series : survey.series()) {
    if (series.next.kind == Kind::kOneWay) one_way.insert(series.next.ranks);
    if (series.next.kind == Kind::kBothWays) both.insert(series.next.ranks);
  }
  EXPECT_THAT(one_way, ElementsAre(std::vector{0, 1}, std::vector{0, 2}, std::vector{0, 3},
                                   std::vector{1, 0}, std::vector{2, 0}, std::vector{2, 3},
                                   std::vector{3, 0}, std::vector{3, 2}));
  EXPECT_THAT(both, ElementsAre(std::vector{0, 1}, std::vector{0, 2}, std::vector{0, 3},
                                std::vector{2, 3}));
}

TEST(Survey, MeasuresRanksOfOneNodeWithinAnIslandAndBetweenIslands) {
  Survey survey(SiteOf({0, 0, 0, 0}, {0, 0, 1, 1}));
  std::set<std::vector<int>> both;
  for (const Series& series : survey.series())
    if (series.next.kind == Kind::kBothWays) both.insert(series.next.ranks);
  EXPECT_THAT(both, ElementsAre(std::vector{0, 1}, std::vector{0, 2}));
}

TEST(Survey, OneRankHasProductsAndCopiesOnly) {
  Survey survey(SiteOf({0}, {0}));
  for (const Series& series : survey.series())
    EXPECT_TRUE(series.next.kind == Kind::kProduct || series.next.kind == Kind::kCopy);
  EXPECT_EQ(survey.count(), 4);
}

// The tiny product's time is that of its fixed costs.
TEST(Survey, AProductThatFailsBeyondTheTinyOneSizesNoRows) {
  Survey survey(SiteOf({0, 1}, {0, 0}));
  while (const std::optional<Probe> probe = survey.Next()) {
    EXPECT_EQ(probe->width, 0);
    if (probe->kind == Kind::kProduct && probe->size > kLeastSide) {
      survey.Fail("no room");
      continue;
    }
    EpochTimes times;
    for (int rank : probe->ranks) times[rank] = Linear(*probe, 1, 100);
    survey.Add(times, "a wire");
  }
}

TEST(Survey, NoProbeTakesMuchLongerThanALaunchMay) {
  for (const double bytes_per_ns : {0.0125, 0.125, 0.5, 1.25, 12.5, 100.0}) {
    for (const double flops_per_ns : {1.0, 20.0, 500.0, 5000.0}) {
      Survey survey(SiteOf({0, 1}, {0, 0}));
      const auto time_ns = [&](const Probe& p) { return Linear(p, bytes_per_ns, flops_per_ns); };
      for (const Probe& probe : RunAll(&survey, time_ns))
        EXPECT_LE(time_ns(probe), 8e6) << Describe(probe) << " " << bytes_per_ns;
      EXPECT_EQ(survey.done(), survey.count());
    }
  }
}

TEST(Survey, MessagesGrowUntilTheyTakeMillisecondsOrReachTheBound) {
  for (const double bytes_per_ns : {0.125, 0.5, 1.25, 12.5}) {
    Survey survey(SiteOf({0, 1}, {0, 0}));
    const auto time_ns = [&](const Probe& p) { return Linear(p, bytes_per_ns, 100); };
    RunAll(&survey, time_ns);
    const Series& series = survey.series().front();
    EXPECT_EQ(series.timed.front().first, kLeastBytes);
    const double last_ns = series.timed.back().second.at(0);
    EXPECT_TRUE(last_ns >= 2e6 || series.timed.back().first == 4 << 20) << bytes_per_ns;
  }
}

TEST(Survey, ProductsHaveATinySizeAndThreeThatGrow) {
  Survey survey(SiteOf({0, 1}, {0, 0}));
  RunAll(&survey, [](const Probe& p) { return Linear(p, 1, 50); });
  int products = 0;
  for (const Series& series : survey.series()) {
    if (series.next.kind != Kind::kProduct) continue;
    ++products;
    ASSERT_EQ(series.timed.size(), 4u);
    EXPECT_EQ(series.timed[0].first, kLeastSide);
    EXPECT_EQ(series.timed[1].first, 128);
    EXPECT_LT(series.timed[1].first, series.timed[2].first);
    EXPECT_LT(series.timed[2].first, series.timed[3].first);
    EXPECT_EQ(series.timed[0].second.size(), 2u);
  }
  EXPECT_EQ(products, 3);
}

TEST(Survey, ProductsHideTheMovementOfTheirRows) {
  int sized = 0;
  for (const double bytes_per_ns : {0.0125, 0.125, 0.5, 1.25, 12.5}) {
    for (const double flops_per_ns : {20.0, 200.0, 5000.0}) {
      Survey survey(SiteOf({0, 0, 1}, {0, 0, 0}));
      RunAll(&survey, [&](const Probe& p) { return Linear(p, bytes_per_ns, flops_per_ns); });
      std::vector<Probe> rows;
      for (const Series& series : survey.series()) {
        if (series.next.width == 0) continue;
        EXPECT_EQ(series.timed.size(), 1u);
        rows.push_back(series.next);
      }
      if (rows.empty()) continue;
      ++sized;
      std::vector<Kind> kinds;
      for (const Probe& probe : rows) kinds.push_back(probe.kind);
      const size_t series = kinds.size() / kRounds;
      ASSERT_EQ(kinds.size(), series * kRounds);
      EXPECT_THAT(std::vector<Kind>(kinds.begin(), kinds.begin() + static_cast<int64_t>(series)),
                  ElementsAre(Kind::kRows, Kind::kMovingRows, Kind::kWholeRows, Kind::kRows,
                              Kind::kMovingColumns));
      for (size_t i = series; i < rows.size(); ++i) EXPECT_EQ(rows[i], rows[i - series]) << i;
      EXPECT_EQ(rows[3].size, rows[0].width);
      EXPECT_EQ(rows[3].width, std::max<int64_t>(64, rows[0].size / 64 * 64));
      EXPECT_EQ(rows[1].ranks, (std::vector{0, 2}));
      EXPECT_EQ(rows[0].width, rows[1].width);
      // A row is multiplied on both ranks, and half of the rows travel each way.
      const double product_ns = 2.0 * kDepth * static_cast<double>(rows[1].width) / flops_per_ns;
      EXPECT_LE(kDepth / bytes_per_ns, 0.55 * product_ns) << bytes_per_ns << " " << flops_per_ns;
    }
  }
  EXPECT_GE(sized, 8);
}

TEST(Survey, NoProductIsWideEnoughForAVerySlowLink) {
  Survey survey(SiteOf({0, 1}, {0, 0}));
  RunAll(&survey, [](const Probe& p) { return Linear(p, 0.001, 5000); });
  for (const Series& series : survey.series())
    EXPECT_EQ(series.next.width, 0) << Describe(series.next);
  EXPECT_EQ(survey.done(), survey.count());
}

TEST(Survey, TheNextProbeStaysUntilItIsAnswered) {
  Survey survey(SiteOf({0, 1}, {0, 0}));
  const Probe first = *survey.Next();
  EXPECT_EQ(*survey.Next(), first);
  survey.Fail("no room");
  EXPECT_NE(*survey.Next(), first);
  EXPECT_EQ(survey.done(), 1);
  EXPECT_EQ(survey.series().front().error, "no room");
}

// Each probe fits into the memory that a probe may take, and its plan is proved.
TEST(Probe, EveryProbeHasAPlanThatFits) {
  for (const int64_t max_bytes : {64 << 10, 2 << 20, 64 << 20}) {
    const Site site = SiteOf({0, 0, 1}, {0, 1, 0}, max_bytes);
    Survey survey(site);
    for (const Probe& probe : RunAll(&survey, [](const Probe& p) { return Linear(p, 1, 50); })) {
      SCOPED_TRACE(Describe(probe));
      const absl::StatusOr<JobSpec> job = JobOf(probe, site.node_of_rank, site.island_of_rank);
      ASSERT_TRUE(job.ok()) << job.status();
      Planned planned = BeginPlan(*job);
      ASSERT_TRUE(planned.status.ok()) << planned.status;
      FinishPlan(*job, planned);
      ASSERT_TRUE(planned.status.ok()) << planned.status;
      const Layout layout = LayOut(job->problem, planned.workspace_bytes);
      EXPECT_LE(layout.bytes, max_bytes);
      EXPECT_EQ(layout.offset_bytes.size(), job->problem.tensors.size());
      EXPECT_EQ(planned.resolved.recipe.transfers_only, IsMessage(probe));
    }
  }
}

TEST(Probe, AMessageIsOneTransferInEachDirection) {
  for (const auto& [kind, transfers] : {std::pair(Kind::kOneWay, 1), {Kind::kBothWays, 2}}) {
    const Probe probe = {kind, {1, 0}, DType::kBF16, 1 << 20};
    const JobSpec job = *JobOf(probe, {0, 1}, {0, 0});
    const absl::StatusOr<Schedule> schedule = Plan(job.problem, job.topology, job.options);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    int count = 0;
    for (const std::vector<Step>& steps : schedule->ranks) {
      for (const Step& step : steps) {
        const auto* transfer = std::get_if<Transfer>(&step.op);
        ASSERT_TRUE(transfer != nullptr || std::holds_alternative<Join>(step.op));
        if (transfer == nullptr) continue;
        ++count;
        EXPECT_EQ(transfer->block.rows.size() * transfer->block.cols.size() * 2, 1 << 20);
      }
    }
    EXPECT_EQ(count, transfers);
    // The first of the ranks sends.
    if (kind == Kind::kOneWay) {
      EXPECT_TRUE(std::any_of(schedule->ranks[0].begin(), schedule->ranks[0].end(),
                              [](auto& s) { return std::holds_alternative<Transfer>(s.op); }));
    }
  }
}

}  // namespace
}  // namespace agmm::measure
