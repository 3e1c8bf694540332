#include "daemon/sequencer/placement.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/reason.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPage = 4096;

Placement Make(std::vector<int64_t> heaps) {
  Placement placement;
  placement.Reset(heaps);
  return placement;
}

TEST(Placement, TakesTheLowestOffsetFreeOnAllRanks) {
  Placement placement = Make({16 * kPage, 16 * kPage});
  EXPECT_EQ(*placement.Allocate({0}, 2 * kPage, MemoryClass::kTensor), 0);
  EXPECT_EQ(*placement.Allocate({1}, kPage, MemoryClass::kTensor), 0);
  EXPECT_EQ(*placement.Allocate({0, 1}, kPage, MemoryClass::kTensor), 2 * kPage);
  EXPECT_EQ(*placement.Allocate({1}, kPage, MemoryClass::kTensor), kPage);
}

TEST(Placement, OffsetsAreWholePages) {
  Placement placement = Make({16 * kPage});
  EXPECT_EQ(*placement.Allocate({0}, 1, MemoryClass::kTensor), 0);
  EXPECT_EQ(*placement.Allocate({0}, kPage + 1, MemoryClass::kTensor), kPage);
  EXPECT_EQ(*placement.Allocate({0}, 1, MemoryClass::kTensor), 3 * kPage);
}

TEST(Placement, FreedPiecesGrowTogetherAgain) {
  Placement placement = Make({4 * kPage});
  for (int64_t i = 0; i < 4; ++i)
    ASSERT_EQ(*placement.Allocate({0}, kPage, MemoryClass::kTensor), i * kPage);
  placement.Free({0}, 0, kPage, MemoryClass::kTensor);
  placement.Free({0}, 2 * kPage, kPage, MemoryClass::kTensor);
  EXPECT_EQ(placement.largest_free_bytes(0), kPage);
  placement.Free({0}, kPage, kPage, MemoryClass::kTensor);
  EXPECT_EQ(placement.largest_free_bytes(0), 3 * kPage);
  placement.Free({0}, 3 * kPage, kPage, MemoryClass::kTensor);
  EXPECT_EQ(placement.largest_free_bytes(0), 4 * kPage);
  EXPECT_EQ(*placement.Allocate({0}, 4 * kPage, MemoryClass::kTensor), 0);
}

TEST(Placement, BytesAreCountedByClass) {
  Placement placement = Make({8 * kPage});
  ASSERT_TRUE(placement.Allocate({0}, 1, MemoryClass::kTensor).ok());
  const auto workspace = placement.Allocate({0}, 2 * kPage, MemoryClass::kWorkspace);
  EXPECT_EQ(placement.used_bytes(0, MemoryClass::kTensor), kPage);
  EXPECT_EQ(placement.used_bytes(0, MemoryClass::kWorkspace), 2 * kPage);
  EXPECT_EQ(placement.free_bytes(0), 5 * kPage);
  placement.Free({0}, *workspace, 2 * kPage, MemoryClass::kWorkspace);
  EXPECT_EQ(placement.used_bytes(0, MemoryClass::kWorkspace), 0);
}

TEST(Placement, FullHeapReportsRequestedFreeAndLargest) {
  Placement placement = Make({4 * kPage, 4 * kPage});
  // The free memory of ranks 0 and 1 has one page in common.
  ASSERT_TRUE(placement.Allocate({0}, 2 * kPage, MemoryClass::kTensor).ok());
  ASSERT_TRUE(placement.Allocate({1}, 3 * kPage, MemoryClass::kTensor).ok());
  const absl::Status full = placement.Allocate({0, 1}, 2 * kPage, MemoryClass::kTensor).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), kReasonHeapFull);
  EXPECT_THAT(std::string(full.message()), HasSubstr("8 KiB were requested"));
  EXPECT_THAT(std::string(full.message()), HasSubstr("rank 1 has 4 KiB free of 16 KiB"));
  EXPECT_THAT(std::string(full.message()), HasSubstr("all of them is 4 KiB"));
}

TEST(Placement, ReclaimIsTriedBeforeGivingUp) {
  Placement placement = Make({2 * kPage});
  ASSERT_TRUE(placement.Allocate({0}, 2 * kPage, MemoryClass::kWorkspace).ok());
  int calls = 0;
  placement.set_reclaim([&](const std::vector<int>&, int64_t) {
    if (++calls > 1) return false;
    placement.Free({0}, 0, 2 * kPage, MemoryClass::kWorkspace);
    return true;
  });
  EXPECT_EQ(*placement.Allocate({0}, 2 * kPage, MemoryClass::kTensor), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(placement.Allocate({0}, kPage, MemoryClass::kTensor).ok());
  EXPECT_EQ(calls, 2);
}

TEST(Placement, NothingIsReclaimedForAnImpossibleSize) {
  Placement placement = Make({8 * kPage, 4 * kPage + 1});
  ASSERT_TRUE(placement.Allocate({0, 1}, kPage, MemoryClass::kWorkspace).ok());
  int calls = 0;
  placement.set_reclaim([&](const std::vector<int>&, int64_t) {
    ++calls;
    return false;
  });
  for (int64_t bytes : {4 * kPage + 1, 5 * kPage, std::numeric_limits<int64_t>::max()}) {
    const absl::Status full = placement.Allocate({0, 1}, bytes, MemoryClass::kTensor).status();
    EXPECT_EQ(ReasonOf(full), kReasonHeapFull) << bytes;
    EXPECT_THAT(std::string(full.message()), HasSubstr("rank 1 has 12 KiB free of"));
    EXPECT_THAT(std::string(full.message()), HasSubstr("all of them is 12 KiB"));
  }
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(placement.Allocate({0, 1}, 4 * kPage, MemoryClass::kTensor).ok());
  EXPECT_EQ(calls, 1);
}

TEST(Placement, RandomUseAgreesWithABitmap) {
  const char* given = std::getenv("AGMM_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE(testing::Message() << "AGMM_SEED=" << seed);
  std::mt19937_64 random(seed);
  constexpr int kRanks = 3, kPages = 40;
  Placement placement = Make(std::vector<int64_t>(kRanks, kPages * kPage));
  std::vector<std::vector<bool>> used(kRanks, std::vector<bool>(kPages));
  struct Piece {
    std::vector<int> ranks;
    int64_t offset, bytes;
  };
  std::vector<Piece> pieces;
  const auto fits = [&](const std::vector<int>& ranks, int first, int pages) {
    for (int rank : ranks)
      for (int page = first; page < first + pages; ++page)
        if (used[rank][page]) return false;
    return true;
  };
  const auto mark = [&](const Piece& piece, bool value) {
    for (int rank : piece.ranks)
      for (int64_t page = piece.offset / kPage; page * kPage < piece.offset + piece.bytes; ++page)
        used[rank][page] = value;
  };
  for (int round = 0; round < 2000; ++round) {
    if (!pieces.empty() && random() % 2 == 0) {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      const Piece piece = pieces.back();
      pieces.pop_back();
      placement.Free(piece.ranks, piece.offset, piece.bytes, MemoryClass::kTensor);
      mark(piece, false);
    } else {
      Piece piece;
      for (int rank = 0; rank < kRanks; ++rank)
        if (random() % 2 == 0) piece.ranks.push_back(rank);
      if (piece.ranks.empty()) piece.ranks = {0};
      piece.bytes = 1 + static_cast<int64_t>(random() % (6 * kPage));
      const int pages = static_cast<int>((piece.bytes + kPage - 1) / kPage);
      int expected = 0;
      while (expected + pages <= kPages && !fits(piece.ranks, expected, pages)) ++expected;
      const auto offset = placement.Allocate(piece.ranks, piece.bytes, MemoryClass::kTensor);
      ASSERT_EQ(offset.ok(), expected + pages <= kPages);
      if (!offset.ok()) continue;
      ASSERT_EQ(*offset, expected * kPage);
      piece.offset = *offset;
      mark(piece, true);
      pieces.push_back(piece);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(placement.free_bytes(rank),
                kPage * std::count(used[rank].begin(), used[rank].end(), false));
    }
  }
}

}  // namespace
}  // namespace agmm
