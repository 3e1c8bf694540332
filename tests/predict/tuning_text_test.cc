// Tables of tuned plans as text: entries that can be used, errors at their line and column, and
// changes that keep all other text.
#include "proto/convert/tuning_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/utf8.h"
#include "proto/convert/tuning_messages.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// 18 lines.
constexpr char kEntry[] = R"(plans {
  spec: "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
  dtypes: [DTYPE_BF16, DTYPE_BF16, DTYPE_BF16]
  mesh: "x=4"
  ranks_per_node: [2, 2]
  m: 1024  n: 4096  k: 2048
  hardware: "cpu: 2 threads"
  between_gb_per_s: 1.1
  options {
    algorithm: "direct"
    chunk_count: 4
    k_chunk_count: 1
    split: "N=x"
  }
  time_us: 212.5
  serial_us: 290
  date: "2026-11-27"
}
)";

// kEntry with one piece of it replaced.
std::string EntryWith(const std::string& from, const std::string& to) {
  std::string text = absl::StrReplaceAll(kEntry, {{from, to}});
  EXPECT_NE(text, kEntry) << from;
  return text;
}

TuningText Read(const std::string& text) { return ReadTuning(text, "t.textproto"); }

std::string SkippedIn(const std::string& text) {
  const TuningText read = Read(text);
  EXPECT_EQ(read.skipped.size(), 1u) << text;
  return read.skipped.empty() ? "" : read.skipped[0];
}

std::vector<int64_t> RowsOf(const TuningText& read) {
  std::vector<int64_t> rows;
  for (const TuningText::Entry& entry : read.entries) rows.push_back(entry.plan.key.m);
  return rows;
}

TEST(TuningText, AnEntryIsAPlan) {
  const TuningText read = Read(kEntry);
  EXPECT_THAT(read.skipped, IsEmpty());
  ASSERT_EQ(read.entries.size(), 1u);
  const TunedPlan& plan = read.entries[0].plan;
  EXPECT_EQ(plan.key.spec, "A[M_x, K] * B[K, N_x] -> C[M, N_x]");
  EXPECT_THAT(plan.key.dtypes, ElementsAre(DType::kBF16, DType::kBF16, DType::kBF16));
  EXPECT_EQ(plan.key.mesh, "x=4");
  EXPECT_THAT(plan.key.ranks_per_node, ElementsAre(2, 2));
  EXPECT_THAT((std::vector{plan.key.m, plan.key.n, plan.key.k}), ElementsAre(1024, 4096, 2048));
  EXPECT_EQ(plan.key.hardware, "cpu: 2 threads");
  EXPECT_EQ(plan.key.between_bytes_per_ns, 1.1);
  EXPECT_EQ(plan.options, (PlanOptions{"direct", 4, 1, "N=x"}));
  EXPECT_EQ(plan.time_us, 212.5);
  EXPECT_EQ(plan.serial_us, 290);
  EXPECT_EQ(plan.date, "2026-11-27");
}

TEST(TuningText, AnEmptyTextIsAnEmptyTable) {
  for (const char* text : {"", "\n", "# nothing yet\n"}) {
    EXPECT_THAT(Read(text).entries, IsEmpty());
    EXPECT_THAT(Read(text).skipped, IsEmpty());
  }
}

TEST(TuningText, NotationIsAsThePlannerWritesIt) {
  const TuningText read = Read(absl::StrReplaceAll(
      kEntry, {{"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "A[M_x,K]*B[K,N_x]->C[M,N_x]"}}));
  ASSERT_EQ(read.entries.size(), 1u);
  EXPECT_EQ(read.entries[0].plan.key.spec, "A[M_x, K] * B[K, N_x] -> C[M, N_x]");
}

TEST(TuningText, AMessageMakesAnEqualPlan) {
  const TunedPlan plan = Read(kEntry).entries[0].plan;
  const auto again = FromProto(ToProto(plan));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, plan);
}

struct Fault {
  std::string from, to;
  std::string error;  // begins with this, after the file
};

TEST(TuningText, EachFaultIsAtItsLineAndColumn) {
  const std::vector<Fault> faults = {
      {"DTYPE_BF16, DTYPE_BF16,", "DTYPE_BF17, DTYPE_BF16,", ":3:22: Unknown enumeration value"},
      {"  mesh: \"x=4\"", "  mash: \"x=4\"", ":4:7: "},
      {"\"x=4\"", "\"x=0\"", ":4:3: mesh is wrong: "},
      {"K] * B[K", "K] * B[L", ":2:3: spec is wrong: "},
      {"C[M, N_x]", "C[M, N_x]:f32", ":2:3: spec has dtypes"},
      {"[DTYPE_BF16, DTYPE_BF16, DTYPE_BF16]", "DTYPE_BF16", ":3:3: dtypes has 1 entries"},
      {"DTYPE_BF16, DTYPE_BF16]", "DTYPE_F16, DTYPE_BF16]", ":3:3: dtypes do not fit: "},
      {"[2, 2]", "[2, 1]", ":5:3: ranks_per_node has 3 ranks in all"},
      {"[2, 2]", "[4, 0]", ":5:3: ranks_per_node has 0"},
      {"m: 1024", "m: 0", ":6:3: m is 0, outside [1, "},
      {"n: 4096", "n: 268435457", ":6:12: n is 268435457, outside"},
      {"k: 2048", "k: -1", ":6:21: k is -1, outside"},
      {"\"cpu: 2 threads\"", "\"\"", ":7:3: hardware is missing"},
      {"s: 1.1", "s: -1", ":8:3: between_gb_per_s is -1"},
      {"s: 1.1", "s: inf", ":8:3: between_gb_per_s is inf"},
      {"direct", "driect", ":10:5: options.algorithm \"driect\" is not known; use one of auto"},
      {"direct", "auto", ":10:5: options.algorithm is open"},
      {"    chunk_count: 4", "    chunk_count: 0", ":11:5: options.chunk_count is 0"},
      {"    k_chunk_count: 1", "    k_chunk_count: 257", ":12:5: options.k_chunk_count is 257"},
      {"\"N=x\"", "\"N=q\"", ":13:5: options.split is wrong: "},
      {"\"N=x\"", "\"\"", ":13:5: options.split is open"},
      {"\"N=x\"", "\"N=x\" transfers_only: true", ":13:18: options.transfers_only"},
      {"\"N=x\"", "\"N=x\" workspace_shard_count: 1", ":9:3: options are wrong: "},
      {"\"N=x\"", "\"N=x\" partials: 9", ":13:18: options.partials is wrong"},
      {"212.5", "0", ":15:3: time_us is 0"},
      {"212.5", "nan", ":15:3: time_us is nan"},
      {": 290", ": -2", ":16:3: serial_us is -2"},
      {"2026-11-27", "yesterday", ":17:3: date is \"yesterday\""},
      {"  time_us: 212.5\n", "", ":1:1: time_us is 0"},
  };
  for (const Fault& fault : faults) {
    EXPECT_THAT(SkippedIn(EntryWith(fault.from, fault.to)),
                StartsWith(absl::StrCat("t.textproto", fault.error)))
        << fault.to;
  }
}

TEST(TuningText, AFaultBehindOtherEntriesIsAtItsLine) {
  const TuningText read =
      Read(absl::StrCat(kEntry, EntryWith("direct", "driect"), EntryWith("m: 1024", "m: 7")));
  EXPECT_THAT(RowsOf(read), ElementsAre(1024, 7));
  EXPECT_THAT(read.skipped, ElementsAre(StartsWith("t.textproto:28:5: options.algorithm")));
}

TEST(TuningText, AFaultOnTheFirstLineOfAnEntryIsAtItsColumn) {
  const std::string before = "\tplans { spec: \"A[M, K] -> B[M, K_x]\" ";
  // A tab ends at column 8.
  EXPECT_THAT(SkippedIn(before + "m: x }"),
              StartsWith(absl::StrCat("t.textproto:1:", 8 + before.size() + 3, ": ")));
}

// Some are faults of the text itself, after which protobuf's parser would end.
TEST(TuningText, ATornEntryDoesNotAffectTheOthers) {
  const std::string last = EntryWith("m: 1024", "m: 7");
  const std::vector<std::pair<std::string, std::string>> torn = {
      {std::string(kEntry).substr(0, 150), ":19:1: this entry has no closing brace"},
      {EntryWith("  }\n", ""), ":19:1: this entry has no closing brace"},
      {EntryWith("\"x=4\"", "\"x=4"), ":22:"},
      {EntryWith("m: 1024", "m: 1024 }"), ":"},
      {EntryWith("m: 1024", "m: \x01 1024"), ":24:"},
      {"plans\n", ":19:1: this is not an entry"},
      {"plans 3 { m: 2 }\n", ":19:1: this is not an entry"},
      {"plan { m: 2 }\n", ":19:1: this is not an entry"},
      {"}\n", ":19:1: this is not an entry"},
      {"<<<<<<< ours\n", ":19:1: this is not an entry"},
  };
  for (const auto& [text, error] : torn) {
    const TuningText read = Read(absl::StrCat(kEntry, text, last));
    EXPECT_THAT(RowsOf(read), ElementsAre(1024, 7)) << text;
    ASSERT_FALSE(read.skipped.empty()) << text;
    EXPECT_THAT(read.skipped[0], StartsWith(absl::StrCat("t.textproto", error))) << text;
  }
}

// Deletes, inserts and replaces some bytes, except for the last one, which ends the line.
std::string Damaged(std::string text, std::mt19937_64& random) {
  const absl::string_view kBytes = "{}\"'\\\n #<>[]:,;plans3\x01\xff";
  const int count = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < count && text.size() > 1; ++i) {
    const size_t at = random() % (text.size() - 1);
    const size_t kind = random() % 3;
    if (kind == 0) text.erase(at, std::min(1 + random() % 20, text.size() - 1 - at));
    if (kind == 1) text.insert(at, 1, kBytes[random() % kBytes.size()]);
    if (kind == 2) text[at] = kBytes[random() % kBytes.size()];
  }
  return text;
}

TEST(TuningText, ADamagedEntryNeverAffectsTheOthers) {
  std::mt19937_64 random(TestSeed());
  const std::string last = EntryWith("m: 1024", "m: 7");
  for (int i = 0; i < 2000; ++i) {
    const std::string damaged = Damaged(kEntry, random);
    const TuningText read = Read(absl::StrCat(kEntry, damaged, last));
    ASSERT_GE(read.entries.size(), 2u) << damaged;
    EXPECT_EQ(read.entries.front().begin, 0u);
    EXPECT_EQ(read.entries.back().plan.key.m, 7) << damaged;
    EXPECT_EQ(read.entries.back().begin, sizeof(kEntry) - 1 + damaged.size()) << damaged;
    EXPECT_TRUE(read.entries.size() == 3 || !read.skipped.empty()) << damaged;
  }
}

TEST(TuningText, BracesInStringsAndCommentsAreText) {
  const TuningText read =
      Read(absl::StrCat("# plans { is how an entry begins\n",
                        EntryWith("cpu: 2 threads", "cpu { plans } \\\" }"), kEntry));
  EXPECT_EQ(read.entries.size(), 2u);
  EXPECT_THAT(read.skipped, IsEmpty());
}

// Takes no longer than with a line for each.
TEST(TuningText, ManyEntriesMayBeOnOneLine) {
  std::string text;
  for (int i = 1; i < kMaxTunedPlans; ++i) text += kEntry;
  std::replace(text.begin(), text.end(), '\n', ' ');
  text += "plans { m: x }";
  const TuningText read = Read(text);
  EXPECT_EQ(read.entries.size(), static_cast<size_t>(kMaxTunedPlans - 1));
  EXPECT_THAT(read.skipped,
              ElementsAre(StartsWith(absl::StrCat("t.textproto:1:", text.size() - 2, ": "))));
}

// Messages with other strings cannot be sent.
TEST(TuningText, BytesThatAreNotUtf8AreRefused) {
  for (const auto& [good, bad] :
       {std::pair("cpu: 2 threads", "\\377"), {"m: 1024", "m: \"\xff\""}}) {
    const TuningText read = Read(EntryWith(good, bad));
    EXPECT_THAT(read.entries, IsEmpty());
    ASSERT_EQ(read.skipped.size(), 1u);
    EXPECT_FALSE(NoUtf8From(read.skipped[0]).has_value()) << read.skipped[0];
  }
}

TEST(TuningText, NoMoreThanABoundAreRead) {
  std::string text;
  for (int i = 0; i <= kMaxTunedPlans; ++i) text += kEntry;
  const TuningText read = Read(text);
  EXPECT_EQ(read.entries.size(), static_cast<size_t>(kMaxTunedPlans));
  EXPECT_THAT(read.skipped, ElementsAre(StartsWith(absl::StrCat(
                                "t.textproto:", 18 * kMaxTunedPlans + 1, ":1: a table has"))));
  EXPECT_TRUE(absl::IsResourceExhausted(AddTuning(text, "t", {}).status()));
}

TEST(TuningText, NoMoreThanABoundAreNamed) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "plans {}\n";
  EXPECT_EQ(Read(text).skipped.size(), kMaxSkipped);
}

TunedPlan PlanWithRows(int64_t m, double time_us) {
  TunedPlan plan = Read(kEntry).entries[0].plan;
  plan.key.m = m;
  plan.time_us = time_us;
  return plan;
}

TEST(AddTuning, AddsPlansAndKeepsAllOtherText) {
  const std::string old = absl::StrCat("# mine\n", kEntry, "plans { torn\n");
  const auto text = AddTuning(old, "t", {PlanWithRows(7, 1)});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, StartsWith(old));
  const TuningText read = Read(*text);
  EXPECT_THAT(RowsOf(read), ElementsAre(1024, 7));
  EXPECT_EQ(read.entries[1].plan, PlanWithRows(7, 1));
  EXPECT_EQ(read.skipped.size(), 1u);
}

TEST(AddTuning, ReplacesThePlanOfTheSameProblem) {
  const std::string old = absl::StrCat("# a\n", kEntry, "# b\n", EntryWith("m: 1024", "m: 7"));
  const auto text = AddTuning(old, "t", {PlanWithRows(1024, 5)});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, StartsWith(absl::StrCat("# a\n# b\n", EntryWith("m: 1024", "m: 7"))));
  EXPECT_THAT(RowsOf(Read(*text)), ElementsAre(7, 1024));
  EXPECT_EQ(Read(*text).entries[1].plan.time_us, 5);
}

TEST(AddTuning, KeepsThePlanForOtherLinks) {
  TunedPlan plan = PlanWithRows(1024, 5);
  plan.key.between_bytes_per_ns = 0.5;
  EXPECT_THAT(RowsOf(Read(*AddTuning(kEntry, "t", {plan}))), ElementsAre(1024, 1024));
}

TEST(AddTuning, TheLastOfEqualPlansStays) {
  const auto text = AddTuning("", "t", {PlanWithRows(3, 1), PlanWithRows(3, 2)});
  ASSERT_EQ(Read(*text).entries.size(), 1u);
  EXPECT_EQ(Read(*text).entries[0].plan.time_us, 2);
}

TEST(AddTuning, RefusesMorePlansThanABound) {
  std::vector<TunedPlan> plans;
  for (int i = 0; i < kMaxTunedPlans; ++i) plans.push_back(PlanWithRows(1 + 2 * i, 1));
  const auto text = AddTuning("", "t", plans);
  ASSERT_TRUE(text.ok()) << text.status();
  const absl::Status full = AddTuning(*text, "t", {PlanWithRows(2, 1)}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("more than 4096 plans"));
  EXPECT_TRUE(AddTuning(*text, "t", {PlanWithRows(1, 2)}).ok());
}

TEST(ShippedTuning, HasNoFault) { EXPECT_THAT(ShippedTuning().skipped, IsEmpty()); }

}  // namespace
}  // namespace agmm::test
