// agmmctl tune, as a user runs it.
#include <google/protobuf/text_format.h>
#include <signal.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "agmm/v1/tuning.pb.h"
#include "tests/e2e/ctl.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

constexpr char kSpec[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";

class CtlTune : public Ctl {
 protected:
  // Tunes the product of PutOperands.
  std::vector<std::string> Tuning(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"tune",     kSpec, "M=96,N=64,K=80", "--dtype", "f32",
                                          "--rounds", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // Runs the product of PutOperands and returns why its plan was chosen.
  std::string Explanation(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"job",         "submit", "--bind",
                                          "A=X,B=W,C=Y", "--wait", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string out = Ok(arguments);
    const std::vector<std::string> lines = absl::StrSplit(out, '\n', absl::SkipEmpty());
    return Json::parse(lines.back())["explanation"];
  }
  Json Plans() { return OkJson({"tune", "--list"})["plans"]; }
  v1::TuningTable TableIn(const std::string& path) {
    v1::TuningTable table;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(ReadFile(path), &table));
    return table;
  }
};

TEST_F(CtlTune, LaterJobsRunTheStoredPlan) {
  const Json tuned = Json::parse(Stored(Tuning({"--json"})));
  EXPECT_EQ(tuned["schema"], "agmm.tune_result.v1");
  EXPECT_TRUE(tuned["skipped"].is_null());
  EXPECT_EQ(tuned["dtypes"], Json({"f32", "f32", "f32"}));
  EXPECT_GT(tuned["time_ms"], 0);
  EXPECT_GT(tuned["auto_ms"], 0);
  EXPECT_GT(tuned["serial_ms"], 0);
  EXPECT_GE(tuned["plans"].size(), 2u);
  ExpectNothingIsLeft();

  const TestMatrix product = PutOperands();
  EXPECT_THAT(Explanation(), StartsWith("tuned"));
  EXPECT_TRUE(SameBits(Get("Y"), product));
  EXPECT_THAT(Explanation({"--no-tuning"}), StartsWith("auto takes"));
  const Json shown = OkJson({"job", "show", "1"});
  EXPECT_THAT(shown["explanation"], Not(StartsWith("tuned"))) << "a job of tune itself";
  for (const bool tuning : {true, false}) {
    std::vector<std::string> bench = {"bench",    "--shape", "M=96,N=64,K=80", "--dtype", "f32",
                                      "--rounds", "1",       "--algorithm",    "auto",    "--json"};
    if (!tuning) bench.push_back("--no-tuning");
    const std::string out = Ok(bench);
    const std::vector<std::string> lines = absl::StrSplit(out, '\n', absl::SkipEmpty());
    const std::string why = Json::parse(lines.back())["explanation"];
    EXPECT_EQ(absl::StartsWith(why, "tuned"), tuning) << why;
  }
}

TEST_F(CtlTune, TheTableIsShownAndSavedAsText) {
  // The program brings plans of other products.
  EXPECT_THAT(Ok({"tune", "--list"}), Not(HasSubstr("192x64x80")));
  const std::string saved = world_.Path("saved.txtpb"), listed = world_.Path("listed.txtpb");
  const std::string text = Stored(Tuning({"M=192,N=64,K=80", "--save", saved}));
  EXPECT_THAT(text, StartsWith("96x64x80: "));
  EXPECT_THAT(text, HasSubstr("\n192x64x80: "));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("\n", kSpec, "  f32  mesh x=4\n")));
  const v1::TuningTable table = TableIn(saved);
  ASSERT_EQ(table.plans_size(), 2);
  EXPECT_EQ(table.plans(0).spec(), kSpec);
  EXPECT_EQ(table.plans(1).m(), 192);
  EXPECT_NE(table.plans(0).hardware(), "");
  EXPECT_GT(table.plans(0).time_us(), 0);
  EXPECT_GT(table.plans(0).serial_us(), 0);
  EXPECT_NE(table.plans(0).options().algorithm(), "auto");
  EXPECT_GT(table.plans(0).options().chunk_count(), 0);

  const Ran list = Run({"tune", "--list", "--save", listed});
  EXPECT_THAT(list.out, HasSubstr("192x64x80"));
  EXPECT_EQ(list.err, absl::StrCat(listed, ": 2 plans\n"));
  EXPECT_EQ(ReadFile(listed), ReadFile(saved));
  EXPECT_EQ(Plans().size(), 2u);
}

TEST_F(CtlTune, AShapeWithoutASpecIsOneOfTheDefaultSpec) {
  const Json tuned = OkJson({"tune", "M=96,N=64,K=80", "--dtype", "f32", "--rounds", "1"});
  EXPECT_EQ(tuned["spec"], kSpec);
  EXPECT_EQ(tuned["name"], "96x64x80");
}

TEST_F(CtlTune, CollectivesAndOpenSumsAreTuned) {
  const std::string out =
      Stored({"tune", "A[M, K]{U_x} -> B[M_x, K]", "M=64,K=32", "--rounds", "1", "--json"});
  const Json tuned = Json::parse(out);
  EXPECT_TRUE(tuned["skipped"].is_null()) << tuned;
  EXPECT_EQ(tuned["m"], 64);
  EXPECT_EQ(tuned["k"], 0);
  EXPECT_GT(tuned["time_ms"], 0);
  EXPECT_EQ(Plans().size(), 1u);
  ExpectNothingIsLeft();
}

TEST_F(CtlTune, TheSuiteHasSumsUnlessAnotherSpecIsGiven) {
  const auto specs = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(),
                     {"--suite", "--scale", "1024", "--rounds", "1", "--budget", "10m", "--json"});
    const std::string out = Ok(arguments);
    std::set<std::string> found;
    for (const absl::string_view line : absl::StrSplit(out, '\n', absl::SkipEmpty()))
      found.insert(Json::parse(line)["spec"]);
    return found;
  };
  constexpr char kScattered[] = "A[M, K_x] * B[K_x, N] -> C[M_x, N]";
  EXPECT_THAT(specs({"tune"}),
              UnorderedElementsAre(kSpec, kScattered, "A[M, K_x] * B[K_x, N] -> C[M, N]"));
  EXPECT_THAT(specs({"tune", kScattered}), UnorderedElementsAre(kScattered));
}

TEST_F(CtlTune, AShapeThatDoesNotFitIsSkippedAndTheOthersAreNot) {
  const std::string text = Stored({"tune", kSpec, "M=100000,N=1000,K=1000", "M=96,N=64,K=80",
                                   "--rounds", "1", "--budget", "10m"});
  EXPECT_THAT(text, HasSubstr("100000x1000x1000: skipped\n"));
  EXPECT_EQ(Plans().size(), 1u);
  const Ran none = Run({"tune", kSpec, "M=100000,N=1000,K=1000", "--budget", "10m"});
  EXPECT_EQ(none.exit_code, 8);
  EXPECT_THAT(none.err, HasSubstr("no shape fits"));
  const std::vector<std::string> around = absl::StrSplit(none.out + none.err, "no plan of ");
  EXPECT_EQ(around.size(), 2u) << "one reason:\n" << none.out << none.err;
}

TEST_F(CtlTune, MistakesAreReportedBeforeAnythingRuns) {
  ExpectError({"tune"}, 2, "no shape is given");
  ExpectError({"tune", kSpec}, 2, "no shape is given");
  ExpectError({"tune", "--suite", "--list"}, 2, "--list");
  ExpectError({"tune", kSpec, "M=8,N=8,K=8", "--scale", "2"}, 2, "add --suite");
  ExpectError({"tune", "A[M_x, K] -> B[M, K]", "--suite"}, 2, "--suite has the shapes of products");
  ExpectError({"tune", kSpec, "M=8,N=8,K=8", "--mesh", "x=5"}, 2, "needs 5 ranks");
  ExpectError({"tune", kSpec, "M=8,N=8,K=8", "--budget", "never"}, 2, "--budget \"never\"");
  ExpectError({"tune", kSpec, "M=8,N=8,K=8", "--timeout", "never"}, 2, "--timeout \"never\"");
  ExpectError({"tune", kSpec, "M=8,N=8,K=8", "--dtype", "i8"}, 2, "i8");
  ExpectError({"tune", kSpec, "M=8,N=8,K=8", "--save", "/no/such/folder/file"}, 2,
              "/no/such/folder");
  ExpectError({"tune", kSpec, "M=4096,N=4096,K=4096", "--budget", "1ms"}, 2,
              "is too short: one round of the plans of 1 shape takes about");
  for (const auto& [spec, shape, what] : {std::tuple(kSpec, "8x8x8", "expected M=, N= or K="),
                                          {kSpec, "M=8,N=8", "K="},
                                          {"A[M_x, K] * B[K, N_y]", "M=8,N=8,K=8", "spec"},
                                          {"M=8,N=8,K=8", "M=8,N=8", "K="},
                                          {"M=8,N=8", "M=8,N=8,K=8", "K="}}) {
    const Ran ran = Run({"tune", spec, shape});
    EXPECT_EQ(ran.exit_code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(what));
  }
  EXPECT_EQ(Plans().size(), 0u);
  EXPECT_THAT(Ok({"job", "list"}), HasSubstr("no jobs"));
  ExpectNothingIsLeft();
}

TEST_F(CtlTune, CtrlCKeepsTheShapesThatAreFinished) {
  constexpr int kAttempts = 3;
  const std::string saved = world_.Path("saved.txtpb");
  std::unique_ptr<Process> tune;
  // Again if the host was so busy that the first plan is not stored.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    tune = world_.StartCtl(1, {"tune", kSpec, "M=64,N=64,K=64", "M=640,N=640,K=640", "--rounds",
                               "100", "--budget", "10s", "--save", saved});
    ASSERT_TRUE(Prints(tune.get(), "64x64x64: ")) << "it is at the second product";
    tune->Signal(SIGINT);
    EXPECT_EQ(tune->Wait(kPatience), 130);
    if (!absl::StrContains(tune->out(), "runs differ by")) break;
  }
  ASSERT_THAT(tune->out(), Not(HasSubstr("runs differ by"))) << kAttempts << " times";
  EXPECT_THAT(tune->err(), StartsWith(absl::StrCat(saved, ": 1 plan\nagmmctl: ")));
  EXPECT_EQ(Plans().size(), 1u);
  EXPECT_EQ(TableIn(saved).plans_size(), 1);
  AwaitNoTensors();
}

}  // namespace
}  // namespace agmm
