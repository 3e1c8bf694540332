// agmmctl advise as a user runs it: the scaling book's question 7, and a memory that nothing fits.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/process.h"
#include "tests/support/patience.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
class AdviseCli : public ::testing::Test {
 protected:
  // Runs `agmmctl advise`; fails the test unless it ends with `exit_code`.
  void Run(std::vector<std::string> arguments, int exit_code) {
    arguments.insert(arguments.begin(), {AGMMCTL, "advise"});
    Process process(arguments, folder_ / "log");
    EXPECT_EQ(process.Wait(kPatience), exit_code) << process.err();
    out_ = process.out();
    err_ = process.err();
  }

  std::string out_, err_;

 private:
  const TempFolder folder_{"advise"};
};

const std::vector<std::string> kQuestion7 = {
    "--mesh",   "x=2,y=2",
    "--preset", "tpu-v5e",
    "--shape",  "B=128,D=8192,F=32768",
    "--spec",   "x[B, D] * V[D, F] -> H[B, F]; H * W[F, D] -> Y[B, D]",
    "--memory"};

std::vector<std::string> With(std::vector<std::string> arguments,
                              const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST_F(AdviseCli, AnswersQuestion7) {
  Run(With(kQuestion7, {"300MB", "--top", "2"}), 0);
  EXPECT_THAT(out_, StartsWith("machine   tpu-v5e, mesh x=2,y=2\nmemory    286.10 MiB a rank\n"));
  EXPECT_THAT(out_, HasSubstr("x[B, D] * V[D, F_xy] -> H[B, F_xy]\n    moves nothing\n"));
  EXPECT_THAT(out_,
              HasSubstr("H[B, F_xy] * W[F_xy, D] -> Y[B, D_xy]\n    reduce-scatter Y over xy"));
  EXPECT_THAT(out_, HasSubstr("\nplace 1: "));
  EXPECT_EQ(err_, "");
}

TEST_F(AdviseCli, PrintsOneDocument) {
  Run(With(kQuestion7, {"300MB", "--top", "2", "--json"}), 0);
  const nlohmann::json json = nlohmann::json::parse(out_, nullptr, /*allow_exceptions=*/false);
  ASSERT_FALSE(json.is_discarded()) << out_;
  EXPECT_EQ(json["schema"], "agmm.advice.v1");
  EXPECT_EQ(json["ranked"].size(), 2U);
  EXPECT_EQ(json["ranked"][0]["products"].size(), 2U);
}

TEST_F(AdviseCli, NamesTheSmallestNeedIfNothingFits) {
  Run(With(kQuestion7, {"100MB"}), 8);
  EXPECT_THAT(err_, HasSubstr("the smallest needs at least 259 MiB"));
}

TEST_F(AdviseCli, RefusesAnOutputOfAnotherName) {
  Run({"--mesh", "x=2", "--shape", "M=8,N=8,K=8", "--output", "D[M, N]"}, 2);
  EXPECT_THAT(err_, HasSubstr("does not name the result"));
}

}  // namespace
}  // namespace agmm
