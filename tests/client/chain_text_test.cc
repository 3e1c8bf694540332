#include "client/ctl/chain_text.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

// Rows [begin, begin + 16) of A go from each rank to the next one; then each rank multiplies them.
struct Pipeline {
  Pipeline() {
    schedule.ranks.resize(4);
    for (Rank rank = 0; rank < 4; ++rank) {
      Transfer send;
      send.block = {0, {0, 16}, {0, 64}};
      send.from.rank = rank;
      send.to = {Place{(rank + 1) % 4}};
      schedule.ranks[rank].push_back({send});
      for (const int64_t begin : {0, 16, 32}) {
        Multiply multiply;
        multiply.a = {0, {begin, begin + 16}, {0, 64}};
        multiply.b = {1, {0, 64}, {0, 16}};
        schedule.ranks[rank].push_back({multiply});
      }
    }
  }
  std::vector<ChainLine> Lines() const { return ChainLines(problem, schedule, chain); }

  Problem problem = *ParseProblem(kDefaultSpec, *ParseMesh("x=4"), {64, 64, 64}, DType::kF32);
  Schedule schedule;
  std::vector<ChainPart> chain;
};

TEST(ChainText, APartKeepsItsText) {
  Pipeline pipeline;
  pipeline.chain = {{0, 0, 0, 41'000, true, "rank 1 waits 41 us for rows 0:16 of A from rank 0"},
                    {1, 1, 41'000, 50'000, false, "rank 1, 9 us: multiply A[0:16] x B"}};
  const std::vector<ChainLine> lines = pipeline.Lines();
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[0].text, "rank 1 waits 41 us for rows 0:16 of A from rank 0");
  EXPECT_EQ(lines[1].begin_ns, 41'000);
  EXPECT_EQ(lines[1].end_ns, 50'000);
}

TEST(ChainText, StepsOfOneKindOnOneRankAreOneLine) {
  Pipeline pipeline;
  pipeline.chain = {{1, 1, 0, 9'000, false, "one"},
                    {1, 2, 9'000, 20'000, false, "two"},
                    {1, 3, 21'000, 30'000, false, "three"},
                    {2, 1, 30'000, 31'000, false, "other rank"},
                    {2, 0, 31'000, 32'000, false, "other kind"}};
  const std::vector<ChainLine> lines = pipeline.Lines();
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[0].parts, 3);
  EXPECT_EQ(lines[0].text,
            "rank 1, 30 us: 3 steps, from \"multiply A[0:16] x B[:, 0:16]\" to \"multiply "
            "A[32:48] x B[:, 0:16]\"");
  EXPECT_EQ(lines[1].text, "other rank");
  EXPECT_EQ(lines[2].text, "other kind");
}

TEST(ChainText, ABlockThatGoesFromRankToRankIsOneWait) {
  Pipeline pipeline;
  pipeline.chain = {{0, 0, 0, 10'000, true, "first"},
                    {1, 0, 10'000, 20'000, true, "second"},
                    {2, 0, 20'000, 30'500, true, "third"},
                    {3, 1, 30'500, 31'000, false, "multiply"}};
  std::vector<ChainLine> lines = pipeline.Lines();
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[0].text, "rank 3 waits 30.5 us for rows 0:16 of A from rank 0, over 3 hops");
  // Another block, or another rank, ends the way of the first.
  std::get<Transfer>(pipeline.schedule.ranks[1][0].op).block.rows = {16, 32};
  lines = pipeline.Lines();
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[1].text, "second");
}

TEST(ChainText, LinesBeyondTwentyAreCounted) {
  std::vector<ChainLine> lines(23, {1500, 2500, 1, "rank 0, 1 us: join"});
  lines[0].begin_ns = 0;
  const std::string text = ChainText(lines);
  EXPECT_THAT(text, HasSubstr("\n0.0  rank 0, 1 us: join\n"));
  EXPECT_THAT(text, HasSubstr("\n1.5  rank 0, 1 us: join\n"));
  EXPECT_THAT(text, HasSubstr("... 3 more\n"));
  lines.resize(20);
  EXPECT_THAT(ChainText(lines), ::testing::Not(HasSubstr("more")));
}

}  // namespace
}  // namespace agmm
