#include "kernels/schedule/text.h"

#include <cstdlib>
#include <random>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/spec.h"
#include "tests/schedule/text_parse.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

Problem SmallProblem(absl::string_view spec = kDefaultSpec) {
  return ParseProblem(spec, ParseMesh("x=2").value(), {512, 64, 32}, DType::kBF16).value();
}

// Two ranks, one step of each kind and each optional part once.
Schedule SmallSchedule() {
  const Block a{kA, {0, 256}, {0, 32}}, b{kB, {0, 32}, {0, 32}}, c{kC, {0, 256}, {0, 32}};
  const Place at_a{0, kA, 0, 128, DType::kBF16}, at_b{0, kB, 0, 128, DType::kBF16},
      at_c{0, kC, 0, 128, DType::kBF16}, sum{0, kWorkspace, 512, 128, DType::kF32},
      peer{1, kWorkspace, 0, 128, DType::kBF16};
  Schedule schedule;
  schedule.algorithm = "ring";
  schedule.workspace_bytes = 65536;
  schedule.ranks.resize(2);
  auto& steps = schedule.ranks[0];
  steps.push_back({Transfer{a, at_a, {peer, at_a}, 1}, 1, {{{0, 1}, 1}}, {{1, 0}, {0, 2}}});
  steps.push_back(
      {Multiply{a, b, c, at_a, at_b, sum, {}, true, false}, 0, {{{0, 2}, 0}, {{0, 1}, 1}}, {}});
  steps.push_back({Multiply{a, b, c, at_a, at_b, {}, at_c, false, true}, 0, {}, {}});
  steps.push_back({Reduce{c, {peer, sum}, sum, at_c, true, true}, 0, {}, {{1, 3}}});
  schedule.ranks[1].push_back({Join(), 2, {{{1, 0}, 0}}, {{0, 1}}});
  return schedule;
}

constexpr char kSmallText[] =
    "agmm schedule 1 ring ranks=2 workspace=65536\n"
    "rank 0\n"
    "  0 lane 1 transfer A[0:256,0:32]@0:A+0/128:bf16 -> 1:workspace+0/128:bf16, 0:A+0/128:bf16"
    "  carrier 1  wait 0:1-1  signal 1:0 0:2\n"
    "  1 lane 0 multiply A[0:256,0:32]@0:A+0/128:bf16 * B[0:32,0:32]@0:B+0/128:bf16"
    " -> C[0:256,0:32]  acc 0:workspace+512/128:f32  accumulate  wait 0:2 0:1-1\n"
    "  2 lane 0 multiply A[0:256,0:32]@0:A+0/128:bf16 * B[0:32,0:32]@0:B+0/128:bf16"
    " -> C[0:256,0:32]@0:C+0/128:bf16  finish\n"
    "  3 lane 0 reduce C[0:256,0:32]@1:workspace+0/128:bf16, 0:workspace+512/128:f32"
    " -> 0:C+0/128:bf16  acc 0:workspace+512/128:f32  accumulate  finish  signal 1:3\n"
    "rank 1\n"
    "  0 lane 2 join  wait 1:0  signal 0:1\n";

TEST(Text, PrintsOneLineAStep) { EXPECT_EQ(Print(SmallProblem(), SmallSchedule()), kSmallText); }

TEST(Text, ParsesWhatItPrints) {
  const auto schedule = Parse(SmallProblem(), kSmallText);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(*schedule, SmallSchedule());
}

TEST(Text, CommentsAndBlankLinesAreIgnored) {
  const std::string text =
      absl::StrCat("# a plan\n\n", absl::StrReplaceAll(kSmallText, {{"\n", "\n# x\n \n"}}));
  EXPECT_EQ(*Parse(SmallProblem(), text), SmallSchedule());
}

class RandomText : public ::testing::Test {
 protected:
  RandomText() {
    const char* text = std::getenv("AGMM_SEED");
    seed_ = text != nullptr ? std::stoul(text) : std::random_device{}();
    random_.seed(seed_);
  }
  int Below(int bound) { return static_cast<int>(random_() % bound); }
  // Small, large and negative, so that every width and sign is printed.
  int64_t Any() {
    switch (Below(5)) {
      case 0: return static_cast<int64_t>(random_() | (uint64_t{random_()} << 32));
      case 1: return INT64_MIN + Below(2);
      case 2: return -Below(10);
      default: return Below(1000);
    }
  }
  int AnyInt() { return Below(4) == 0 ? static_cast<int>(random_()) : Below(12) - 2; }
  Range AnyRange() { return {Any(), Any()}; }
  Block AnyBlock() { return Below(8) == 0 ? Block{} : Block{AnyInt(), AnyRange(), AnyRange()}; }
  Place AnyPlace() {
    if (Below(4) == 0) return {};
    return {AnyInt(), AnyInt(), Any(), Any(), static_cast<DType>(Below(3) + 1)};
  }
  Slot AnySlot() { return {AnyInt(), AnyInt()}; }
  Step AnyStep() {
    Step step;
    step.lane = AnyInt();
    switch (Below(4)) {
      case 0: break;
      case 1: {
        Transfer op{AnyBlock(), AnyPlace(), {}, Below(2) == 0 ? -1 : AnyInt()};
        for (int i = Below(3); i > 0; --i) op.to.push_back(AnyPlace());
        step.op = op;
        break;
      }
      case 2: {
        Multiply op{AnyBlock(), AnyBlock(), AnyBlock(), AnyPlace(), AnyPlace()};
        if (Below(2) == 0) op.acc = AnyPlace();
        op.out = AnyPlace();
        op.accumulate = Below(2) == 0;
        op.finish = Below(2) == 0;
        step.op = op;
        break;
      }
      default:
        step.op =
            Reduce{AnyBlock(), {AnyPlace()}, AnyPlace(), AnyPlace(), Below(2) == 0, Below(2) == 0};
    }
    for (int i = Below(4); i > 0; --i)
      step.waits.push_back({AnySlot(), Below(3) == 0 ? AnyInt() : 0});
    for (int i = Below(4); i > 0; --i) step.signals.push_back(AnySlot());
    return step;
  }
  Schedule AnySchedule() {
    Schedule schedule;
    for (int i = Below(6); i > 0; --i) schedule.algorithm += static_cast<char>(Below(256));
    if (Below(2) == 0) schedule.algorithm = "hierarchical-2_x";
    schedule.workspace_bytes = Any();
    schedule.ranks.resize(Below(4));
    for (auto& steps : schedule.ranks) {
      for (int i = Below(5); i > 0; --i) steps.push_back(AnyStep());
    }
    return schedule;
  }

  unsigned seed_;
  std::mt19937 random_;
};

TEST_F(RandomText, AnyScheduleSurvivesPrintingAndParsing) {
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed_));
  Problem odd_names = SmallProblem();
  odd_names.tensors[kA].name = "workspace";
  odd_names.tensors[kB].name = "C";
  const Problem problems[] = {SmallProblem(), SmallProblem("act[I, L] * w[L, J] -> o[I, J]"),
                              odd_names};
  for (int round = 0; round < 3000; ++round) {
    const Problem& problem = problems[round % 3];
    const Schedule schedule = AnySchedule();
    const std::string text = Print(problem, schedule);
    const auto parsed = Parse(problem, text);
    ASSERT_TRUE(parsed.ok()) << parsed.status() << "\n" << text;
    ASSERT_EQ(*parsed, schedule) << text;
  }
}

TEST_F(RandomText, MutilatedTextIsAnErrorOrAnotherSchedule) {
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed_));
  const Problem problem = SmallProblem();
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = kSmallText;
    for (int edits = Below(4) + 1; edits > 0 && !text.empty(); --edits) {
      const size_t at = Below(static_cast<int>(text.size()));
      switch (Below(4)) {
        case 0: text[at] = static_cast<char>(Below(256)); break;
        case 1: text.erase(at, Below(30)); break;
        case 2: text.insert(at, text.substr(Below(static_cast<int>(text.size())), 20)); break;
        default: text.resize(at + 1);
      }
    }
    const auto parsed = Parse(problem, text);
    if (parsed.ok()) {
      EXPECT_EQ(*Parse(problem, Print(problem, *parsed)), *parsed) << text;
    } else {
      ++refused;
      EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Text, ErrorsNameLineAndColumn) {
  const struct {
    const char *from, *to, *error;
  } cases[] = {
      {"agmm schedule 1", "agmm schedule 2", "line 1 column 16: format 2 is not known"},
      {"agmm schedule", "agmm plan", "line 1 column 6: expected \"schedule\""},
      {"ranks=2", "ranks=4097", "line 1 column 32: 4097 ranks; a schedule has at most 4096"},
      {"ranks=2", "ranks=-2", "line 1 column 28: expected a whole number"},
      {"ranks=2", "ranks=3", "the text ends after 2 of 3 ranks"},
      {"ranks=2", "ranks=1", "line 7 column 7: this is rank 1; 1 of 1 ranks were read"},
      {"rank 0", "rank 1", "line 2 column 7: this is rank 1; 0 of 2 ranks were read"},
      {"rank 0\n", "", "line 2 column 3: expected \"rank 0\""},
      {"  1 lane", "  2 lane", "line 4 column 4: this is step 2; the next one is 1"},
      {"multiply A", "mutiply A", "line 4 column 12: expected transfer, multiply, reduce or join"},
      {"transfer A", "transfer Q", "line 3 column 21: \"Q\" is not an operand of the problem"},
      {"+0/128:bf16", "+0/128:f8", "line 3 column 45: dtype \"f8\" is not known"},
      {"[0:256,", "[0:99999999999999999999,", "line 3 column 25: expected a whole number"},
      {"join", "join again", "line 8 column 17: the rest of the line is left over"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.to);
    std::string text = kSmallText;
    text.replace(text.find(bad.from), strlen(bad.from), bad.to);
    const auto parsed = Parse(SmallProblem(), text);
    ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(bad.error));
  }
}

TEST(Text, HugeTextsAreRefused) {
  const auto over = Parse(SmallProblem(), std::string((16 << 20) + 1, '\n'));
  EXPECT_THAT(std::string(over.status().message()), HasSubstr("at most 16777216 are read"));
  std::string steps = "agmm schedule 1 ring ranks=1 workspace=0\nrank 0\n";
  for (int i = 0; i <= 1 << 18; ++i) absl::StrAppend(&steps, i, " lane 0 join\n");
  EXPECT_THAT(std::string(Parse(SmallProblem(), steps).status().message()),
              HasSubstr("over 262144 steps"));
  EXPECT_FALSE(Parse(SmallProblem(), "").ok());
}

TEST(Describe, DescribesAStep) {
  const Problem problem = SmallProblem();
  const Schedule schedule = SmallSchedule();
  EXPECT_EQ(Describe(problem, schedule.ranks[0][0]), "send rows 0:256 of A to rank 1");
  EXPECT_EQ(Describe(problem, schedule.ranks[0][1]), "multiply A[0:256] x B[:, 0:32]");
  EXPECT_EQ(Describe(problem, schedule.ranks[0][3]),
            "add rows 0:256, columns 0:32 of C from rank 1, rank 0");
  EXPECT_EQ(Describe(problem, schedule.ranks[1][0]), "join");
}

TEST(Describe, NamesRanksOfTheWorld) {
  Problem problem = SmallProblem();
  problem.mesh.ranks = {6, 7};
  EXPECT_EQ(Describe(problem, SmallSchedule().ranks[0][0]), "send rows 0:256 of A to rank 7");
}

TEST(Amount, CountsBytesOfAllDestinationsAndFlops) {
  const Schedule schedule = SmallSchedule();
  const auto text = [&](Rank rank, int step) {
    const Amount amount = AmountOf(schedule.ranks[rank][step]);
    return absl::StrCat(amount.count, " ", amount.unit);
  };
  EXPECT_EQ(text(0, 0), absl::StrCat(2 * 256 * 32 * 2, " bytes"));
  EXPECT_EQ(text(0, 1), absl::StrCat(2 * 256 * 32 * 32, " flop"));
  EXPECT_EQ(text(0, 3), absl::StrCat(256 * 32 * (2 + 4), " bytes"));
  EXPECT_EQ(text(1, 0), "0 bytes");
}

TEST(PlanHash, IsTheSameOnAnyRanksOfTheWorld) {
  Problem moved = SmallProblem();
  moved.mesh.ranks = {6, 7};
  EXPECT_EQ(PlanHash(moved, SmallSchedule()), PlanHash(SmallProblem(), SmallSchedule()));
}

TEST(PlanHash, ChangesWithEverythingElse) {
  const Problem problem = SmallProblem();
  const uint64_t hash = PlanHash(problem, SmallSchedule());
  Problem other = problem;
  other.tensors[kC].dtype = DType::kF32;
  EXPECT_NE(PlanHash(other, SmallSchedule()), hash);
  other = problem;
  other.tensors[kA].sharding.rows = {};
  EXPECT_NE(PlanHash(other, SmallSchedule()), hash);
  other = problem;
  other.mesh.axes = {{"x", 1}, {"y", 2}};
  EXPECT_NE(PlanHash(other, SmallSchedule()), hash);
  Schedule schedule = SmallSchedule();
  schedule.ranks[0][0].waits[0].lag = 0;
  EXPECT_NE(PlanHash(problem, schedule), hash);
}

TEST(PlanHash, TellsOneAxisFromTwoOfTheSameLetters) {
  const Mesh mesh = ParseMesh("x=1,y=2,xy=2").value();
  Problem problem =
      ParseProblem("A[M_xy, K] * B[K, N] -> C[M, N]", mesh, {8, 8, 8}, DType::kF32).value();
  const uint64_t hash = PlanHash(problem, {});
  problem.tensors[kA].sharding.rows = {0, 1};
  EXPECT_NE(PlanHash(problem, {}), hash);
}

TEST(PlanHash, ChangesWithEachNumberOfTheText) {
  const Problem problem = SmallProblem();
  const std::string text = kSmallText;
  std::set<uint64_t> hashes = {PlanHash(problem, SmallSchedule())};
  size_t changed = 1;
  for (size_t at = text.find("rank 0"); at < text.size(); ++at) {
    if (!absl::ascii_isdigit(text[at])) continue;
    std::string other = text;
    other[at] = text[at] == '9' ? '1' : static_cast<char>(text[at] + 1);
    const auto schedule = Parse(problem, other);
    if (!schedule.ok() || *schedule == SmallSchedule()) continue;  // the number of a rank or a step
    hashes.insert(PlanHash(problem, *schedule));
    ++changed;
  }
  EXPECT_GT(changed, 100u);
  EXPECT_EQ(hashes.size(), changed);
}

}  // namespace
}  // namespace agmm
