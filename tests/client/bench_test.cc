// The figures that agmmctl bench computes from its runs.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/ctl/bench_shapes.h"
#include "client/ctl/collective_bench.h"
#include "client/ctl/matmul_report.h"
#include "client/ctl/product.h"
#include "client/ctl/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/messages_fixture.h"
#include "tests/golden/golden.h"
#include "tests/support/widest.h"

namespace agmm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

BenchRow Row(const std::string& algorithm, std::vector<double> runs_ms) {
  BenchRow row{algorithm, SomeJob(), std::move(runs_ms), true};
  if (algorithm == "direct") row.link_bytes = 3'000'000;
  if (algorithm != "auto") {
    row.job.mutable_options()->set_algorithm(algorithm);
    row.job.clear_explanation();
  }
  return row;
}

// T_gemm 8, T_ag 6, unfused 15: direct is the best, auto is ring.
BenchCase SomeCase() {
  BenchCase one;
  one.name = "LLaMA-7B / 8";
  one.problem = *ParseProblem(kDefaultSpec, *ParseMesh("x=2"), {1024, 1376, 512}, DType::kBF16);
  one.shared_host = true;
  one.rows = {Row("serial", {15, 14, 16}), Row("ring", {12, 11, 13}), Row("direct", {10, 10, 10.4}),
              Row("auto", {11, 12, 11})};
  one.parts = {{15, 14, 16}, {8, 8, 9}, {7, 7, 8}, {6, 6, 6}};
  return one;
}

BenchCase Skipped() {
  BenchCase one = SomeCase();
  one.rows.clear();
  one.parts = {};
  one.skipped =
      "tensors of 3 GiB and a workspace of 1 GiB are needed on each rank, and rank 1 has 1 GiB "
      "free of 2 GiB";
  return one;
}

TEST(Bench, FiguresAreOfTheMediansAgainstSerial) {
  const BenchCase one = SomeCase();
  const Figures direct = FiguresOf(one.problem, one.rows[2].runs_ms, one.parts);
  EXPECT_EQ(direct.comparison.fused_ms, 10);
  EXPECT_EQ(direct.comparison.lower_bound_ms, 8);
  EXPECT_DOUBLE_EQ(*direct.comparison.ratio, 0.8);
  EXPECT_DOUBLE_EQ(*direct.comparison.speedup, 1.5);
  EXPECT_DOUBLE_EQ(*direct.comparison.efficiency, 1 - 2.0 / 7);
  EXPECT_NEAR(*direct.spread, 0.01, 1e-9) << "half of the middle half: [10, 10.2]";
  EXPECT_DOUBLE_EQ(*direct.tflops, 2.0 * 1024 * 1376 * 512 / 10e9);
}

TEST(Bench, TheBestIsTheFastestCorrectNamedAlgorithm) {
  BenchCase one = SomeCase();
  EXPECT_EQ(BestOf(one)->algorithm, "direct");
  one.rows[2].exact = false;
  EXPECT_EQ(BestOf(one)->algorithm, "ring") << "not auto, which names nothing";
  EXPECT_EQ(BestOf(Skipped()), nullptr);
}

TEST(Bench, TextMarksTheBestAndNamesTheChoiceOfAuto) {
  const std::string text = BenchText(SomeCase());
  for (const char* what :
       {"LLaMA-7B / 8  M=1024 N=1376 K=512 bf16  mesh x=2\n",
        "T_gemm 8.000 ms  T_ag 6.000 ms  T_lb 8.000 ms  T_unfused 15.000 ms\n",
        "\nalgorithm     min       T     p99      R      E  speedup     rate  link\n",
        "\ndirect     10.000  10.000  10.392  0.800  0.714    1.500    0.144   300  best\n",
        "\nring       11.000  12.000  12.980  0.667",
        "auto ran ring, 2 chunks a shard (auto is ring)\n"}) {
    EXPECT_THAT(text, HasSubstr(what));
  }
  EXPECT_LE(Widest(text), 100) << text;
}

TEST(Bench, TextSaysWhyAlgorithmsHaveNoRow) {
  BenchCase one = SomeCase();
  EXPECT_THAT(BenchText(one), Not(HasSubstr("left out")));
  const std::string why(50, 'x');
  one.left_out = {"ring, direct: nothing has to move", "torus: " + why, "peer: " + why};
  EXPECT_THAT(BenchText(one), HasSubstr("\nleft out  ring, direct: nothing has to move\n"
                                        "          torus: " +
                                        why +
                                        "\n"
                                        "          peer: " +
                                        why + "\n"));
}

TEST(Bench, TextStaysWithinAHundredColumns) {
  BenchCase one = SomeCase();
  one.left_out = {std::string(60, 'x') + " " + std::string(60, 'y')};
  one.name = "LLaMA-3-70B M=32768 / 1024";
  for (BenchRow& row : one.rows) {
    row.algorithm = "ring_bidirectional";
    row.job.mutable_options()->set_chunk_count(256);
    row.runs_ms = {86'400'000, 86'400'000, 86'400'000};
    row.exact = false;
  }
  EXPECT_LE(Widest(BenchText(one)), 100) << BenchText(one);
  BenchCase large = SomeCase();
  large.name = one.name;
  large.problem = *ParseProblem(kDefaultSpec, *ParseMesh("x=2"),
                                {kMaxDimension, kMaxDimension, kMaxDimension}, DType::kBF16);
  for (BenchRow& row : large.rows) row.runs_ms = {86'400'000, 86'400'000, 86'400'000};
  EXPECT_LE(Widest(BenchSummary({large, Skipped()})), 100) << BenchSummary({large, Skipped()});
  EXPECT_LE(Widest(BenchText(Skipped())), 100);
}

TEST(Bench, SummaryHasALineForEachProductAndSaysThatAHostIsShared) {
  const std::string text = BenchSummary({SomeCase(), Skipped()});
  EXPECT_THAT(text, HasSubstr("8.000  direct   10.000  0.800    1.500        1.100\n"))
      << "auto: 11 / 10";
  EXPECT_THAT(text, HasSubstr("skipped\n"));
  EXPECT_THAT(text, HasSubstr("share its cores"));
  EXPECT_THAT(text, HasSubstr("Every C equals that of serial, bit by bit\n"));
  BenchCase alone = SomeCase();
  alone.rows[1].exact = std::nullopt;
  EXPECT_THAT(BenchSummary({alone}), Not(HasSubstr("Every C")));
  alone.shared_host = false;
  EXPECT_THAT(BenchSummary({alone}),
              AllOf(HasSubstr("R = T_lb / T"), Not(HasSubstr("share its cores")),
                    Not(HasSubstr("direct"))));
}

TEST(Bench, RunsThatDifferTooMuchHaveNoRatios) {
  BenchCase one = SomeCase();
  EXPECT_THAT(BenchText(one), Not(HasSubstr("busy")));
  one.rows[2].runs_ms = {4, 10, 16};
  EXPECT_THAT(BenchText(one), AllOf(HasSubstr("  10.000  15.880   busy   busy"),
                                    HasSubstr("the machine is busy: direct: half of the runs "
                                              "differ by more than +-30 %")));
  EXPECT_EQ(ToJson(one)[2]["busy"], "half of the runs differ by more than +-30 %");
  EXPECT_TRUE(ToJson(one)[1]["busy"].is_null());
  EXPECT_THAT(BenchSummary({one, Skipped()}), HasSubstr("direct   10.000  busy"));
  BenchCase baseline = SomeCase();
  baseline.parts.unfused_ms = {6, 15, 24};
  EXPECT_EQ(ToJson(baseline)[2]["busy"], "half of the runs of serial differ by more than +-30 %");
}

TEST(Bench, ATimeBelowTheLowerBoundIsMarkedAndNotCapped) {
  BenchCase one = SomeCase();
  EXPECT_THAT(BenchText(one), Not(HasSubstr("T < T_lb")));
  one.parts.gather_ms = one.parts.transfers_ms = {11, 11, 11};
  EXPECT_THAT(BenchText(one), AllOf(HasSubstr("1.100"), HasSubstr("  best, T < T_lb\n")));
  for (const Json& row : ToJson(one)) {
    EXPECT_EQ(row["gather_ms"], 11) << "one bound for all rows";
    EXPECT_EQ(row["lower_bound_ms"], 11);
    EXPECT_TRUE(row["busy"].is_null());
  }
  EXPECT_DOUBLE_EQ(ToJson(one)[2]["ratio"], 1.1);
}

TEST(Bench, FitsInEightyColumnsAndLosesNoFigure) {
  FitLinesTo(80);
  BenchCase large = SomeCase();
  large.rows[1].algorithm = "bidirectional_ring";
  large.rows[1].runs_ms = {12345.67, 12345.68, 12345.69};
  large.rows[2].exact = std::nullopt;
  large.name = "LLaMA-3.1-405B, feed forward / 128";
  const std::vector<BenchCase> cases = {SomeCase(), large};
  EXPECT_LE(Widest(BenchText(large)), 80) << BenchText(large);
  EXPECT_LE(Widest(BenchSummary(cases)), 80) << BenchSummary(cases);
  EXPECT_THAT(BenchText(large), AllOf(HasSubstr("bidirectional_ring"), HasSubstr("12345.680"),
                                      HasSubstr("C not compared")));
  FitLinesTo(100);
}

TEST(Bench, JsonMatchesTheGoldenFile) {
  std::string text;
  for (const BenchCase& one : {SomeCase(), Skipped()}) {
    for (const auto& line : ToJson(one)) text += line.dump(1) + "\n";
  }
  ExpectGolden("json/bench.json", text);
}

TEST(Bench, AWrongCIsAnErrorThatNamesIt) {
  EXPECT_TRUE(OutcomeOf(std::vector{SomeCase(), Skipped()}).ok());
  BenchCase wrong = SomeCase();
  wrong.rows[1].exact = false;
  EXPECT_THAT(BenchText(wrong), HasSubstr("WRONG"));
  const absl::Status status = OutcomeOf(std::vector{SomeCase(), wrong});
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_THAT(status.message(), HasSubstr("ring on M=1024 N=1376 K=512"));
  wrong.rows[1].exact = std::nullopt;
  EXPECT_TRUE(OutcomeOf(std::vector{wrong}).ok());
  EXPECT_THAT(BenchText(wrong), HasSubstr("C not compared"));
}

TEST(Bench, NoFittingProductIsAnError) {
  const absl::Status status = OutcomeOf(std::vector{Skipped(), Skipped()});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 has 1 GiB free of 2 GiB"));
}

TEST(Bench, TheSuiteIsDividedAndRoundedUp) {
  const std::vector<BenchShape> suite = Suite(4, 8, /*all=*/true);
  EXPECT_EQ(suite.size(), 22);
  const auto sizes = [&](const std::string& name) -> std::vector<int64_t> {
    for (const BenchShape& one : suite)
      if (one.name == name) return {one.shape.m, one.shape.n, one.shape.k};
    return {};
  };
  EXPECT_THAT(sizes("LLaMA-7B"), ElementsAre(1024, 1376, 512));
  EXPECT_THAT(sizes("decode M=1"), ElementsAre(1, 3584, 1024));
  EXPECT_THAT(sizes("decode M=4097"), ElementsAre(513, 3584, 1024));
  EXPECT_THAT(sizes("Pallas unit"), ElementsAre(128 * 4, 512 * 4, 512)) << "a size a rank";
  EXPECT_EQ(Suite(4, 8, /*all=*/false).size(), 4);
}

TEST(Bench, TheSuiteOfSumsHasBothFormsAndIsDividedLikeTheOther) {
  const std::vector<BenchShape> on_cpus = SumSuite(8);
  ASSERT_EQ(on_cpus.size(), 6);
  EXPECT_EQ(on_cpus[0].name, "reduce-scatter 32768x128x256");
  EXPECT_EQ(on_cpus[0].spec, "A[M, K_x] * B[K_x, N] -> C[M_x, N]");
  EXPECT_EQ(on_cpus[5].name, "all-reduce 8192x512x4096");
  EXPECT_EQ(on_cpus[5].spec, "A[M, K_x] * B[K_x, N] -> C[M, N]");
  const Shape whole = SumSuite(1)[0].shape, small = SumSuite(1024)[0].shape;
  EXPECT_THAT((std::vector{whole.m, whole.n, whole.k}), ElementsAre(262144, 1024, 2048));
  EXPECT_THAT((std::vector{small.m, small.n, small.k}), ElementsAre(256, 1, 2));
  const v1::GetStatusResponse status = SomeStatus();
  EXPECT_EQ(SuiteOf(status, 4, 8, /*all=*/true, /*sums=*/true).size(), 22 + 6);
  EXPECT_EQ(SuiteOf(status, 4, 8, /*all=*/true).size(), 22);
}

TEST(Site, RoomIncludesIdleWorkspaces) {
  Site site;
  site.status = SomeStatus();
  site.mesh = *ParseMesh("x=1", {site.status.nodes(0).devices(0).rank()});
  v1::DeviceStatus& device = *site.status.mutable_nodes(0)->mutable_devices(0);
  device.set_heap_bytes(1 << 20);
  device.set_heap_free_bytes(160 << 10);
  device.set_workspace_bytes(32 << 10);
  const Problem problem =
      *ParseProblem("A[M, K] * B[K, N] -> C[M, N]", site.mesh, {128, 128, 128}, DType::kF32);
  EXPECT_TRUE(CheckRoom(site, problem, 0).ok()) << "3 * 64 KiB";
  const absl::Status status = CheckRoom(site, problem, 4096);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("192 KiB and a workspace of 4 KiB"));
  device.set_rank(7);
  EXPECT_TRUE(CheckRoom(site, problem, 4096).ok()) << "of the mesh's ranks alone";
}

TEST(Collectives, AreParsedWithTheirSizes) {
  const auto asked = ParseCollectives({"all_reduce", "all_gather"}, "1KiB:20KiB");
  ASSERT_TRUE(asked.ok()) << asked.status();
  ASSERT_EQ(asked->forms.size(), 2u);
  EXPECT_STREQ(asked->forms[0]->name, "all_gather") << "in the order of the table";
  EXPECT_THAT(asked->sizes, ElementsAre(1024, 4096, 16384));
  EXPECT_EQ(ParseCollectives({"all"}, "5MiB")->forms.size(), CollectiveForms().size());
  EXPECT_THAT(ParseCollectives({"all"}, "5MiB")->sizes, ElementsAre(5 << 20));
  for (const char* bytes : {"", "0", "2KiB:1KiB", "1:2:3", "17GiB", "x"})
    EXPECT_THAT(std::string(ParseCollectives({"all"}, bytes).status().message()),
                HasSubstr("write 64KiB or 1KiB:256MiB"))
        << bytes;
  EXPECT_THAT(std::string(ParseCollectives({"broadcast"}, "1KiB").status().message()),
              HasSubstr("\"broadcast\" is not known; use all, all_gather"));
}

TEST(Collectives, HaveAtLeastTheirSizeAndPartsForEveryRank) {
  for (const CollectiveForm& form : CollectiveForms()) {
    for (const int ranks : {1, 2, 3, 8}) {
      const Mesh mesh = *ParseMesh(absl::StrCat("x=", ranks));
      for (const int64_t size : {int64_t{1}, int64_t{1000}, int64_t{1} << 20}) {
        SCOPED_TRACE(absl::StrCat(form.name, " ", ranks, " ", size));
        const auto problem = CollectiveOf(form, mesh, size, DType::kF32);
        ASSERT_TRUE(problem.ok()) << problem.status();
        const Tensor& whole = problem->tensors[0];
        EXPECT_EQ(whole.rows % ranks, 0);
        EXPECT_EQ(whole.cols % ranks, 0);
        EXPECT_GE(whole.rows * whole.cols * 4, size * (form.size_of_shard ? ranks : 1));
      }
    }
  }
  const Mesh mesh = *ParseMesh("x=4096");
  EXPECT_EQ(
      CollectiveOf(CollectiveForms().back(), mesh, int64_t{1} << 34, DType::kF32).status().code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace agmm
