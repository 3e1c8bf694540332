// agmmctl plan as a user runs it: the program itself, its output, its exit codes.
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/support/widest.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;
using OrderedJson = nlohmann::ordered_json;

struct Result {
  int exit_code = -1;
  std::string out;  // stdout and stderr, interleaved as written
};

// Runs agmmctl with `arguments`, which the shell splits.
Result Agmmctl(absl::string_view arguments) {
  Result result;
  FILE* pipe = popen(absl::StrCat(AGMMCTL, " ", arguments, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> piece;
  while (size_t got = fread(piece.data(), 1, piece.size(), pipe))
    result.out.append(piece.data(), got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

std::vector<std::string> Keys(const OrderedJson& json) {
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  return keys;
}

TEST(PlanCli, TextShowsTheProblemTheChoiceAndTheTraffic) {
  const Result result = Agmmctl(
      "plan --shape M=64,N=32,K=96 --mesh x=4 --nodes 2 --split N=x --algorithm hierarchical "
      "--chunks 1");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out,
              StartsWith("A[M_x, K] * B[K, N_x] -> C[M, N_x]  M=64 N=32 K=96 bf16  mesh x=4\n"
                         "split      N=x\n"
                         "algorithm  hierarchical, 1 chunk a shard\n"
                         "predicted  "));
  EXPECT_THAT(result.out, HasSubstr(", verified\n"));
  EXPECT_THAT(result.out, HasSubstr("workspace  12 KiB on every rank\n"));
  // Each rank sends its shard of 16 x 96 bf16 to both nodes, and forwards one within its own node.
  EXPECT_THAT(result.out, HasSubstr("rank  node  steps  sent to own node  to other nodes\n"
                                    "                              bytes           bytes\n"
                                    "   0     0      7              6144            3072\n"
                                    "   1     0      7              6144            3072\n"
                                    "   2     1      7              6144            3072\n"
                                    "   3     1      7              6144            3072\n"));
  EXPECT_THAT(result.out, HasSubstr("\nsteps      28: 12 transfer, 16 multiply\n"));
  EXPECT_THAT(result.out,
              HasSubstr("\nmoved      24 KiB by memory, 12 KiB by network an epoch; minimum "
                        "between nodes: 12 KiB\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("\nrank 0\n")));
}

TEST(PlanCli, FullTextAddsTheStepsOfEveryRank) {
  const Result result = Agmmctl(
      "plan --shape M=64,N=32,K=96 --mesh x=4 --nodes 2 --split N=x --full --algorithm "
      "hierarchical --chunks 1");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out,
              HasSubstr("\nagmm schedule 1 hierarchical ranks=4 workspace=12288\nrank 0\n"));
  for (const char* rank : {"\nrank 0\n", "\nrank 1\n", "\nrank 2\n", "\nrank 3\n"})
    EXPECT_THAT(result.out, HasSubstr(rank));
}

TEST(PlanCli, OnOneNodeAutoCopiesNothing) {
  const Result result = Agmmctl("plan --shape M=1024,N=1024,K=1024 --mesh x=4");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("algorithm  hierarchical_peer, 1 chunk a shard (auto takes "
                                    "hierarchical_peer, split N=x: predicted"));
  EXPECT_THAT(result.out, HasSubstr("workspace  0 B on every rank\n"));
  EXPECT_THAT(result.out, HasSubstr("\nsteps      24: 16 multiply, 8 join\n"));
  EXPECT_THAT(result.out, HasSubstr("\nmoved      6 MiB by memory an epoch\n"));
}

TEST(PlanCli, ANamedMachineHasItsOwnDevicesPerNodeAsInSimulate) {
  const std::string of = " --shape M=64,N=64,K=64 --mesh x=16 --preset h100-nvlink ";
  const auto nodes = [&](const std::string& flags) {
    const Result result = Agmmctl(absl::StrCat("plan --json", of, flags));
    EXPECT_EQ(result.exit_code, 0) << result.out;
    return OrderedJson::parse(result.out)["topology"]["node_of_rank"].back().get<int>() + 1;
  };
  EXPECT_THAT(Agmmctl("simulate --algorithm direct" + of).out, HasSubstr("16 ranks on 2 nodes"));
  EXPECT_EQ(nodes(""), 2);
  EXPECT_EQ(nodes("--nodes 1"), 1);
  EXPECT_EQ(nodes("--devices-per-node 4"), 4);
}

TEST(PlanCli, AMachineIsReadFromAFileOrStandardInputAndMustBeText) {
  const TempFolder folder("machines");
  const auto with = [&](const std::string& contents, const std::string& from) {
    std::ofstream(folder / "machine") << contents;
    return Agmmctl(
        absl::StrCat("simulate --shape M=8,N=8,K=8 --mesh x=2 ", from, folder / "machine"));
  };
  EXPECT_THAT(Agmmctl("simulate --shape M=8,N=8,K=8 --mesh x=2 --algorithm direct --machine - "
                      "<" AGMM_EXAMPLES "/../../deploy/machines/a100.textproto")
                  .out,
              HasSubstr("machine    a100"));
  for (const auto& [contents, from, error] :
       {std::tuple(std::string("\0\1", 2), "--machine ", "/machine is not a text file; give text"),
        {"\xff", "--tuning ", "/machine is not a text file; give text"},
        {"", "--machine ", "/machine is empty; give a machine to --machine"},
        {"", "--machine - <", "standard input is empty; give a machine to --machine"}}) {
    const Result result = with(contents, from);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.out, HasSubstr(error));
  }
  const Result missing =
      Agmmctl("simulate --shape M=8,N=8,K=8 --mesh x=2 --machine /does/not/exist");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.out, HasSubstr("/does/not/exist cannot be read: No such file or directory"));
}

TEST(PlanCli, ProductsThatMoveNothingAreMarked) {
  const Result result =
      Agmmctl("plan --spec 'A[M_x, K] * B[K, N] -> C[M_x, N]' --shape M=8,N=4,K=4 --mesh x=2");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("algorithm  local (nothing has to move)\n"));
}

TEST(PlanCli, ABoundedWorkspaceReportsItsSavingAndItsSums) {
  const std::string question =
      "plan --shape M=4096,N=1024,K=4096 --mesh x=8 --split N=x --algorithm ring --chunks 1 "
      "--k-chunks 2 --workspace-shards 2";
  const Result text = Agmmctl(question);
  ASSERT_EQ(text.exit_code, 0) << text.out;
  EXPECT_THAT(text.out, HasSubstr("workspace  10 MiB on every rank, 2 MiB of it for sums along K; "
                                  "28 MiB with room for all shards\n"));
  const OrderedJson bounded = OrderedJson::parse(Agmmctl(question + " --json").out)["bounded"];
  EXPECT_EQ(bounded, OrderedJson::parse(R"({"unbounded_bytes": 29360128, "sum_bytes": 2097152})"));
}

TEST(PlanCli, JsonIsOneDocumentOfTheDocumentedFields) {
  const Result result = Agmmctl(
      "plan --json --shape M=64,N=32,K=96 --mesh x=4 --nodes 2 --split N=x --algorithm direct "
      "--chunks 2");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  const OrderedJson plan = OrderedJson::parse(result.out);
  EXPECT_THAT(Keys(plan), ElementsAre("schema", "format", "algorithm", "hash", "problem",
                                      "topology", "options", "why", "refused_by_daemons", "moved",
                                      "workspace_bytes", "bounded", "ranks"));
  EXPECT_EQ(plan["options"], OrderedJson::parse(R"({"split": "N=x", "chunks": 2, "k_chunks": 1,
                                                    "workspace_shards": 0, "partials": "f32",
                                                    "carried": false})"));
  EXPECT_EQ(plan["moved"], OrderedJson::parse(R"({"own_node": 12288, "other_nodes": 24576,
                                                  "least_other_nodes": 12288})"));
  EXPECT_EQ(plan["format"], 3);
  EXPECT_EQ(plan["algorithm"], "direct");
  EXPECT_EQ(plan["hash"].get<std::string>().size(), 16);
  EXPECT_THAT(Keys(plan["problem"]),
              ElementsAre("spec", "mesh", "m", "n", "k", "tensors", "collective", "operands"));
  EXPECT_EQ(plan["problem"]["collective"], nullptr);
  EXPECT_EQ(plan["problem"]["tensors"], OrderedJson({"A", "B", "C"}));
  EXPECT_EQ(plan["topology"]["node_of_rank"], OrderedJson({0, 0, 1, 1}));
  ASSERT_EQ(plan["ranks"].size(), 4);
  int transfers = 0, multiplies = 0;
  for (const OrderedJson& rank : plan["ranks"]) {
    EXPECT_THAT(Keys(rank), ElementsAre("rank", "node", "steps"));
    for (const OrderedJson& step : rank["steps"]) {
      if (step["op"] == "transfer") {
        ++transfers;
        EXPECT_THAT(Keys(step), ElementsAre("lane", "op", "block", "from", "to", "carrier", "waits",
                                            "signals"));
        EXPECT_THAT(Keys(step["from"]), ElementsAre("rank", "buffer", "offset", "pitch", "dtype"));
        EXPECT_THAT(Keys(step["block"]), ElementsAre("operand", "rows", "cols"));
      } else {
        ++multiplies;
        EXPECT_THAT(Keys(step),
                    ElementsAre("lane", "op", "a", "b", "c", "a_place", "b_place", "acc", "out",
                                "accumulate", "finish", "waits", "signals"));
        EXPECT_TRUE(step["acc"].is_null());
      }
    }
  }
  EXPECT_EQ(multiplies, 4 * 8);     // every rank multiplies every chunk
  EXPECT_EQ(transfers, 4 * 2 * 3);  // every chunk goes to each other rank
}

TEST(PlanCli, JsonTellsJoinsFromTransfers) {
  const Result result = Agmmctl("plan --json --shape M=8,N=4,K=4 --mesh x=2 --algorithm peer");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  const OrderedJson plan = OrderedJson::parse(result.out);
  int joins = 0;
  for (const OrderedJson& rank : plan["ranks"]) {
    for (const OrderedJson& step : rank["steps"]) {
      if (step["op"] != "join") continue;
      ++joins;
      EXPECT_THAT(Keys(step), ElementsAre("lane", "op", "waits", "signals"));
    }
  }
  EXPECT_EQ(joins, 2 * 2);  // every rank admits the other, and waits for it
}

TEST(PlanCli, JsonOfASmallPlanMatchesTheGoldenFile) {
  const Result result = Agmmctl(
      "plan --shape M=8,N=4,K=4 --mesh x=2 --dtype f32 --algorithm ring --chunks 1 "
      "--json");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  ExpectGolden("plans/ring_2.json", OrderedJson::parse(result.out).dump(1) + "\n");
}

TEST(PlanCli, TheSameQuestionHasTheSameAnswer) {
  const std::string question =
      "plan --shape M=1000,N=999,K=333 --mesh dp=2,tp=4 --nodes 4 "
      "--spec 'A[M_tpdp, K] * B[K, N] -> C[M, N]'";
  const Result first = Agmmctl(question);
  EXPECT_EQ(first.exit_code, 0) << first.out;
  EXPECT_EQ(first.out, Agmmctl(question).out);
}

TEST(PlanCli, MistakesAreUsageErrorsInFewWords) {
  const struct {
    const char *arguments, *out;
  } cases[] = {
      {"",
       "agmmctl: a command is missing after \"agmmctl\"; use one of status, topo, tensor, job, "
       "session, matmul, bench, tune, plan, simulate, advise\n"},
      {"paln", "agmmctl: unknown command \"paln\"; did you mean \"plan\"?\n"},
      {"tensor lst",
       "agmmctl: unknown command \"lst\" of \"agmmctl tensor\"; did you mean \"list\"?\n"},
      {"plan", "agmmctl: --shape is required; see agmmctl plan --help\n"},
      {"plan --shape M=8,N=8,K=8 --mesh x=2 --colour=red",
       "agmmctl: \"agmmctl plan\" has no flag --colour; see agmmctl plan --help"},
      {"plan --shape M=8,N=8,K=8 --mesh x=2 --chunk 2",
       "agmmctl: \"agmmctl plan\" has no flag --chunk; did you mean \"--chunks\"?"},
      {"plan --shape M=8,N=8,K=8 --mesh x=2 --nodes two",
       "agmmctl: Could not convert: --nodes = two"},
      {"plan --shape M=8,N=8 --mesh x=2",
       "agmmctl: shape column 8: expected \", K=\", found the end\nM=8,N=8\n"
       "       ^\n"},
      {"plan --shape M=8,N=8,K=8 --mesh x=2 --spec 'A[M_z, K] * B[K, N] -> C[M, N]'",
       "agmmctl: spec column 5: \"z\" is not an axis of mesh x=2; use one of its axes, or set the "
       "option mesh to a mesh that has it\nA[M_z, K]"},
      {"plan --shape M=8,N=8,K=8 --mesh x=2 --dtype f8", "agmmctl: dtype \"f8\" is not known"},
      {"plan --shape M=8,N=8,K=8 --mesh x=2 --algorithm magic",
       "agmmctl: algorithm \"magic\" is not known"},
      {"plan --shape M=8,N=8,K=8 --mesh x=4 --nodes 2 --algorithm peer",
       "agmmctl: algorithm peer reads from the memory of one node, and ranks 0 and 2, "
       "which"},
      {"plan --shape M=8,N=8,K=8 --mesh x=2 --chunks 257",
       "agmmctl: --chunks: Value 257 not in range 1 to 256"},
      {"plan --shape M=8,N=8,K=8 --mesh x=2 --chunks 0",
       "agmmctl: --chunks: Value 0 not in range 1 to 256"},
      {"plan --shape M=8,N=8,K=8 --mesh x=2 --nodes -1",
       "agmmctl: --nodes is -1; it must be from 1 to 4096\n"},
      {"plan --shape M=1e18,N=8,K=8 --mesh x=2",
       "agmmctl: shape column 3: M is 1e18; it must be a whole number from 1 to "},
      {"plan --shape M=512.5,N=8,K=8 --mesh x=2",
       "agmmctl: shape column 3: M is 512.5; it must be a whole number from 1 to "},
      {"plan --shape M=8,N=8,K=8 --mesh x=3 --nodes 2",
       "agmmctl: 3 ranks cannot be divided evenly over 2 nodes"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.arguments);
    const Result result = Agmmctl(bad.arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.out, StartsWith(bad.out));
  }
}

TEST(PlanCli, APlanThatIsTooLargeIsRefusedAtOnceWithItsSize) {
  const Result result = Agmmctl(
      "plan --shape M=1048576,N=4096,K=4096 --mesh x=4096 --nodes 512 --algorithm ring --chunks "
      "256");
  EXPECT_EQ(result.exit_code, 8);
  EXPECT_THAT(result.out, HasSubstr("about 8588886016 steps and takes about 10.00 TiB"));
  EXPECT_THAT(result.out, HasSubstr("--chunks"));
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
}

TEST(PlanCli, APlanThatDaemonsRefuseIsMarked) {
  const Result result = Agmmctl(
      "plan --shape M=4096,N=64,K=64 --mesh x=16 --nodes 16 --algorithm ring --split N=x --chunks "
      "256 --k-chunks 2");
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, StartsWith("note: daemons would refuse this plan: it has about "));
  EXPECT_THAT(result.out, HasSubstr("; daemons plan at most 131072\n"));
}

TEST(PlanCli, APlanThatDaemonsRefuseIsMarkedBeforePlanning) {
  const Result result = Agmmctl(
      "plan --shape M=8388608,N=8388608,K=8388608 --mesh x=4 --nodes 4 --algorithm direct --split "
      "N=x --chunks 128 --k-chunks 128");
  EXPECT_EQ(result.exit_code, 8) << "the plan is too large for a rank's workspace";
  EXPECT_THAT(result.out, StartsWith("note: daemons would refuse this plan: it has about "));
}

TEST(PlanCli, AWorkspaceThatNoMachineHasIsRefusedWithItsSize) {
  const Result result =
      Agmmctl("plan --shape M=8388608,N=8388608,K=8388608 --mesh x=4 --nodes 4 --algorithm direct");
  EXPECT_EQ(result.exit_code, 8);
  EXPECT_THAT(result.out, HasSubstr("workspace of 96 TiB on every rank, but the limit is 64 TiB"));
}

TEST(PlanCli, ALocalProductOnManyRanksIsSmall) {
  const Result result = Agmmctl(
      "plan --shape M=1048576,N=4096,K=4096 --mesh x=4096 --nodes 512 --spec "
      "\"A[M_x, K] * B[K, N] -> C[M_x, N]\" --chunks 256");
  EXPECT_EQ(result.exit_code, 0) << result.out;
}

TEST(PlanCli, ExplanationShowsEverySplit) {
  const std::string question =
      "plan --shape M=1024,N=512,K=4096 --mesh x=2,y=2 --explain "
      "--spec 'A[M_x, K_y] * B[K, N_y] -> C[M_x, N_y]'";
  const Result text = Agmmctl(question);
  ASSERT_EQ(text.exit_code, 0) << text.out;
  EXPECT_THAT(text.out, HasSubstr("case 2: K is sharded in one input"));
  EXPECT_THAT(text.out, HasSubstr("predicted T  into busiest rank "));
  EXPECT_THAT(text.out, HasSubstr("\nlimited by "));
  const OrderedJson explanation =
      OrderedJson::parse(Agmmctl(question + " --json").out)["explanation"];
  ASSERT_EQ(explanation["splits"].size(), 16) << "M, N, K or none for each of two axes";
  const OrderedJson& best = explanation["splits"][0];
  const auto split_where = [&](const char* key, const OrderedJson& value) {
    for (const OrderedJson& one : explanation["splits"])
      if (one[key] == value) return one;
    return OrderedJson();
  };
  const OrderedJson taken = split_where("taken", true), whole = split_where("split", "M=x,N=y");
  EXPECT_GT(best["time_ns"], 0);
  EXPECT_LE(taken["time_ns"].get<double>(), 1.01 * best["time_ns"].get<double>());
  EXPECT_EQ(whole["busiest_bytes"], 512 * 2048 * 2) << "half of its rows of A";
  EXPECT_EQ(whole["flops"], 2.0 * 512 * 256 * 4096);
}

TEST(PlanCli, ExplanationShowsTheMovesOfASum) {
  const OrderedJson splits =
      OrderedJson::parse(Agmmctl("plan --shape M=64,N=32,K=4096 --mesh x=4 --json --explain --spec "
                                 "'A[M, K_x] * B[K_x, N] -> C[M_x, N]'")
                             .out)["explanation"]["splits"];
  const auto sum = std::find_if(splits.begin(), splits.end(),
                                [](const OrderedJson& one) { return one["split"] == "K=x"; });
  ASSERT_NE(sum, splits.end());
  EXPECT_TRUE((*sum)["needs_sum"]);
  EXPECT_EQ((*sum)["busiest_bytes"], 3 * 16 * 32 * 4) << "three parts of the f32 sum of its C";
  EXPECT_EQ((*sum)["moved_bytes"], 4 * 3 * 16 * 32 * 4);
  EXPECT_EQ((*sum)["flops"], 2.0 * 64 * 32 * 1024);
  EXPECT_EQ((*sum)["memory_bytes"], 64 * 32 * 4) << "its part of the sum";
}

TEST(PlanCli, ACollectiveIsNamedAndHasTheDimensionsOfItsSpec) {
  for (const auto& [spec, name] : {std::pair("A[M_x, K] -> B[M, K]", "all-gather"),
                                   {"A[M, K]{U_x} -> B[M_x, K]", "reduce-scatter"},
                                   {"A[M, K]{U_x} -> B[M, K]", "all-reduce"},
                                   {"A[M_x, K] -> B[M, K_x]", "all-to-all"},
                                   {"A[M, K] -> B[M_x, K]", "slice"},
                                   {"A[M, K_x] -> B[M, K_x]", "copy"}}) {
    SCOPED_TRACE(spec);
    const std::string question =
        absl::StrFormat("plan --shape K=37,M=61 --mesh x=4 --nodes 2 --spec '%s'", spec);
    const Result text = Agmmctl(question + " --explain");
    ASSERT_EQ(text.exit_code, 0) << text.out;
    EXPECT_THAT(text.out, HasSubstr(absl::StrCat("collective  ", name)));
    EXPECT_THAT(text.out, HasSubstr("M=61 K=37 bf16"));
    const OrderedJson plan = OrderedJson::parse(Agmmctl(question + " --json").out);
    EXPECT_EQ(plan["problem"]["collective"], name);
    EXPECT_EQ(plan["problem"]["k"], 0);
  }
  const Result wrong =
      Agmmctl("plan --shape M=8,N=8,K=8 --mesh x=2 --spec 'x[b,d] * w[d,f_x] -> y[b,f]'");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.out, HasSubstr("M is not a dimension of the spec; give b, f and d"));
}

TEST(Cli, OutputThatCannotBeWrittenIsAnError) {
  const Result result = Agmmctl("plan --shape M=64,N=32,K=96 --mesh x=4 >/dev/full");
  EXPECT_EQ(result.exit_code, 7);
}

TEST(Cli, HelpAndVersionAreNoErrors) {
  for (const char* verb :
       {"",           "status",     "matmul",     "bench",       "plan",        "simulate",
        "tensor",     "tensor put", "tensor get", "tensor fill", "tensor list", "tensor show",
        "tensor rm",  "job",        "job submit", "job list",    "job show",    "job watch",
        "job cancel", "job trace",  "session",    "session list"}) {
    const Result help = Agmmctl(absl::StrCat(verb, " --help"));
    EXPECT_EQ(help.exit_code, 0) << verb;
    EXPECT_LE(Widest(help.out), 80u) << help.out;
  }
  EXPECT_THAT(Agmmctl("plan --help").out, HasSubstr("--shape"));
  const Result version = Agmmctl("--version");
  EXPECT_EQ(version.exit_code, 0);
  // Includes a commit if the sources are a git checkout.
  EXPECT_THAT(version.out, MatchesRegex("agmmctl [0-9.]+( \\([0-9a-f]{12,}(, changed)?\\))?\n"));
}

TEST(SimulateCli, WarningsOfTheTuningTableComeBeforeALaterError) {
  const TempFolder folder("simulate");
  const std::string table = folder / "table.txtpb";
  std::ofstream(table) << "plans {\n  m: 0\n}\n";
  const std::string simulate = absl::StrCat(
      "simulate --preset cpu-tcp --nodes 2 --shape M=64,N=32,K=96 --mesh x=2 --tuning ", table,
      " --trace ", folder / "none/trace.json");
  const Result text = Agmmctl(simulate), json = Agmmctl(absl::StrCat(simulate, " --json"));
  EXPECT_EQ(text.exit_code, 2) << text.out;
  EXPECT_THAT(text.out, StartsWith(absl::StrCat("warning: a tuned plan is not used: ", table)));
  EXPECT_THAT(text.out, HasSubstr("\nagmmctl: "));
  EXPECT_THAT(json.out, Not(HasSubstr("warning"))) << "with JSON, stderr is for errors only";
}

}  // namespace
}  // namespace agmm
