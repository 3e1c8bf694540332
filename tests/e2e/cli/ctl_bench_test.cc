// agmmctl bench, as a user runs it.
#include <signal.h>

#include <map>
#include <set>

#include "absl/strings/str_split.h"
#include "tests/e2e/ctl.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

class CtlBench : public Ctl {
 protected:
  std::vector<Json> Results(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    std::vector<Json> results;
    for (absl::string_view line :
         absl::StrSplit(Ok(std::move(arguments)), '\n', absl::SkipEmpty())) {
      results.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
      EXPECT_EQ(results.back()["schema"], "agmm.bench_result.v1") << line;
    }
    return results;
  }
};

TEST_F(CtlBench, EveryAlgorithmIsTimedAndComparedWithSerial) {
  const std::vector<Json> results =
      Results({"bench", "--shape", "M=100,N=60,K=72", "--rounds", "2", "--algorithm", "all"});
  std::map<std::string, Json> by_name;
  for (const Json& result : results) by_name[result["algorithm"]] = result;
  ASSERT_EQ(results.size(), by_name.size());
  for (const char* name : {"serial", "ring", "direct", "auto"})
    ASSERT_TRUE(by_name.count(name)) << name;
  EXPECT_EQ(by_name.count("peer"), 0u) << "which two daemons cannot run";
  int best = 0;
  for (const Json& result : results) {
    SCOPED_TRACE(result.dump());
    EXPECT_EQ(result["m"], 100);
    EXPECT_EQ(result["n"], 60);
    EXPECT_EQ(result["k"], 72);
    EXPECT_EQ(result["mesh"], "x=4");
    EXPECT_EQ(result["dtype"], "bf16");
    EXPECT_TRUE(result["skipped"].is_null());
    EXPECT_TRUE(result["shared_host"]);
    EXPECT_EQ(result["runs_ms"].size(), 2u) << "without the warm-up";
    EXPECT_TRUE(result["exact"]);
    const double time = result["time_ms"], unfused = result["unfused_ms"], gemm = result["gemm_ms"],
                 gather = result["gather_ms"];
    EXPECT_GT(time, 0);
    EXPECT_DOUBLE_EQ(result["lower_bound_ms"], std::max(gemm, gather));
    EXPECT_DOUBLE_EQ(result["ratio"], std::max(gemm, gather) / time);
    EXPECT_DOUBLE_EQ(result["speedup"], unfused / time);
    EXPECT_DOUBLE_EQ(result["tflops"], 2.0 * 100 * 60 * 72 / (time * 1e9));
    EXPECT_EQ(result["unfused_ms"], by_name["serial"]["time_ms"]);
    best += result["best"].get<bool>();
  }
  EXPECT_EQ(best, 1);
  EXPECT_NE(by_name["auto"]["chosen"], "auto");
  EXPECT_GE(by_name["auto"]["chunks"], 1);
  EXPECT_NE(by_name["ring"]["plan_hash"], by_name["direct"]["plan_hash"]);
  ExpectNothingIsLeft();
}

TEST_F(CtlBench, CollectivesAreTimedAndComparedWithTheRightResults) {
  std::set<std::string> names;
  int rows = 0;
  for (absl::string_view line :
       absl::StrSplit(Ok({"bench", "--collective", "all", "--bytes", "1KiB:16KiB", "--quick",
                          "--algorithm", "auto,ring,peer", "--json"}),
                      '\n', absl::SkipEmpty())) {
    const Json row = Json::parse(line);
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row["schema"], "agmm.collective_result.v1");
    EXPECT_EQ(row["exact"], true);
    EXPECT_GE(row["size_bytes"], 1024);
    EXPECT_GT(row["time_ms"], 0);
    EXPECT_GT(row["bus_gb_per_s"], 0);
    EXPECT_GE(row["runs_ms"].size(), 3u);
    names.insert(row["collective"]);
    ++rows;
  }
  EXPECT_EQ(names.size(), 4u);
  EXPECT_EQ(rows, 4 * 3 * 2) << "peer cannot run on two daemons";
  const std::string text =
      Ok({"bench", "--collective", "all_reduce", "--bytes", "4KiB", "--algorithm", "auto,peer"});
  EXPECT_THAT(text, HasSubstr("exact"));
  EXPECT_THAT(text, HasSubstr("left out: all_reduce, 4 KiB by peer: algorithm peer reads"));
  ExpectNothingIsLeft();
  ExpectError({"bench", "--collective", "all_reduce", "--scale", "2"}, 2, "leave out --shape");
  ExpectError({"bench", "--bytes", "4KiB"}, 2, "add --collective");
  ExpectError({"bench", "--spec", "A[M_x, K] -> B[M, K]"}, 2, "use --collective");
  ExpectError(
      {"bench", "--spec", "A[M, K_x] * B[K_x, N] -> C[M, N]{U_x}", "--shape", "M=8,N=8,K=8"}, 2,
      "leaves the sum of C open");
}

TEST_F(CtlBench, AProductThatDoesNotFitIsSkippedAndTheOthersAreNot) {
  const std::string text = Ok({"bench", "--shape", "M=100000,N=1000,K=1000", "--shape",
                               "M=100,N=60,K=72", "--rounds", "1", "--algorithm", "ring"});
  EXPECT_THAT(text, HasSubstr("skipped: tensors of "));
  EXPECT_THAT(text, HasSubstr("100x60x72  M=100 N=60 K=72 bf16  mesh x=4\n"));
  EXPECT_THAT(text, HasSubstr("share its cores"));
  const std::vector<Json> results =
      Results({"bench", "--shape", "M=100000,N=1000,K=1000", "--shape", "M=100,N=60,K=72",
               "--rounds", "1", "--algorithm", "ring"});
  ASSERT_EQ(results.size(), 3u) << "skipped, serial and ring";
  EXPECT_THAT(results[0]["skipped"], StartsWith("tensors of "));
  EXPECT_TRUE(results[0]["time_ms"].is_null());
  EXPECT_EQ(results[2]["algorithm"], "ring");
  ExpectError({"bench", "--shape", "M=100000,N=1000,K=1000"}, 8, "no product fits");
}

TEST_F(CtlBench, AProductThatMovesNothingHasNoComparison) {
  const std::vector<Json> results =
      Results({"bench", "--shape", "M=64,N=64,K=64", "--mesh", "x=1", "--rounds", "1"});
  ASSERT_EQ(results.size(), 2u) << "serial and auto: the others are the same";
  EXPECT_TRUE(results[1]["ratio"].is_null());
  EXPECT_FALSE(results[1]["shared_host"]);
}

TEST_F(CtlBench, MistakesAreReportedBeforeAnythingRuns) {
  const Ran ran = Run({"bench", "--shape", "64x64x64"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, HasSubstr("expected M=, N= or K="));
  ExpectError({"bench", "--algorithm", "magic"}, 2, "use all, auto");
  ExpectError({"bench", "--shape", "M=8,N=8,K=8", "--scale", "2"}, 2, "add --suite");
  ExpectError({"bench", "--mesh", "x=5"}, 2, "needs 5 ranks");
  ExpectError({"bench", "--timeout", "never"}, 2, "--timeout");
  ExpectNothingIsLeft();
}

TEST_F(CtlBench, CtrlCEndsItAndLeavesNothing) {
  const auto bench = world_.StartCtl(
      1, {"bench", "--shape", "M=64,N=64,K=64", "--shape", "M=640,N=640,K=640", "--rounds", "100"});
  ASSERT_TRUE(Prints(bench.get(), "auto ran")) << "it is at the second product";
  bench->Signal(SIGINT);
  EXPECT_EQ(bench->Wait(kPatience), 130);
  EXPECT_THAT(bench->err(), StartsWith("agmmctl: "));
  AwaitNoTensors();
}

}  // namespace
}  // namespace agmm
