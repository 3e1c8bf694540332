#include <list>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/transport/transport_harness.h"
#include "tests/support/notification.h"

namespace agmm {
namespace {

BulkBlock Block(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end) {
  return {7, 0, row_begin, row_end, col_begin, col_end};
}

absl::Status Write(Cluster& cluster, int node, const BulkBlock& block, const Rows& from) {
  Outcomes done;
  cluster[0].WriteBlock(node, block, from, done.Next());
  if (!done.Wait(1)) return absl::DeadlineExceededError("no answer to the write");
  return done.all()[0];
}

absl::Status Read(Cluster& cluster, int node, const BulkBlock& block, const Rows& to) {
  Outcomes done;
  cluster[0].ReadBlock(node, block, to, done.Next());
  if (!done.Wait(1)) return absl::DeadlineExceededError("no answer to the read");
  return done.all()[0];
}

TEST(TransportBulk, WhatIsWrittenIsThereWhenDoneAndIsReadBack) {
  Cluster cluster(2);
  const MatrixStore& store = cluster.nodes[1]->store;
  uint64_t seed = 0;
  for (const BulkBlock& block :
       {Block(0, 0, 0, 0), Block(0, 1, 0, 1), Block(3, 10, 5, 12), Block(0, 1000, 0, 1000),
        Block(999, 1000, 0, 1000), Block(1, 1000, 999, 1000)}) {
    for (int64_t gap : {0, 24, 57}) {
      const int64_t rows = block.row_end - block.row_begin, cols = block.col_end - block.col_begin;
      SCOPED_TRACE(absl::StrCat(rows, " x ", cols, ", gap ", gap));
      std::vector<std::byte> before = store.memory;
      Patch from(rows, cols, cols + gap), to(rows, cols, cols + 3 * gap);
      from.Fill(++seed);
      const absl::Status written = Write(cluster, 1, block, from.rows());
      ASSERT_TRUE(written.ok()) << written;
      for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(before.data() + (block.row_begin + row) * 1024 + block.col_begin,
                    from.rows().data + row * from.rows().pitch_bytes, cols);
      }
      EXPECT_EQ(store.memory, before)
          << "bytes outside the block have changed, or bytes inside have not";
      const absl::Status read = Read(cluster, 1, block, to.rows());
      ASSERT_TRUE(read.ok()) << read;
      EXPECT_EQ(to.Wrong(seed), std::nullopt);
    }
  }
  EXPECT_TRUE(Eventually([&] { return cluster[0].counters().staging_bytes == 0; }));
  EXPECT_TRUE(Eventually([&] { return cluster[1].counters().staging_bytes == 0; }));
}

TEST(TransportBulk, RefusalsComeBackToTheAskerAndTouchNothing) {
  Cluster cluster(2);
  const MatrixStore& store = cluster.nodes[1]->store;
  const std::vector<std::byte> before = store.memory;
  for (int64_t rows : {2, 1001}) {  // eager and by rendezvous
    Patch patch(rows, 1000, 1000), to(rows, 1000, 1000);
    patch.Fill(1);
    BulkBlock outside = Block(0, rows, 1, 1001);
    BulkBlock other = outside;
    other.tensor = 8;
    BulkBlock mismatch = Block(0, 1, 0, 1000);  // one row, with the bytes of more
    EXPECT_EQ(Write(cluster, 1, outside, patch.rows()).code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(Write(cluster, 1, other, patch.rows()).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(Write(cluster, 1, mismatch, patch.rows()).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Read(cluster, 1, outside, to.rows()).code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(Read(cluster, 1, other, to.rows()).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(Read(cluster, 1, mismatch, to.rows()).code(), absl::StatusCode::kInvalidArgument);
    const absl::Status status = Read(cluster, 1, other, to.rows());
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("tensor 7 is the only one here"));
    EXPECT_EQ(to.Wrong(0).value_or(-1), 0) << "a refused read has written";
  }
  EXPECT_EQ(store.memory, before);
  EXPECT_EQ(cluster[0].counters().dropped(), 0);
}

TEST(TransportBulk, BlocksThatCannotBeAreDroppedAndTheWorldsEndFailsThem) {
  Cluster cluster(2);
  Patch patch(1, 100, 100);
  Outcomes done;
  cluster[0].WriteBlock(1, Block(5, 4, 0, 100), patch.rows(), done.Next());
  cluster[0].ReadBlock(1, Block(0, 1, -1, 99), patch.rows(), done.Next());
  EXPECT_TRUE(Eventually([&] { return cluster[1].counters().malformed == 2; }));
  cluster.SetWorld(2);
  ASSERT_TRUE(done.Wait(2));
  for (const absl::Status& status : done.all())
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
}

TEST(TransportBulk, QuietWaitsForReceivesOfOlderGenerations) {
  Patch from(1000, 1000, 1000);  // outlives the writes
  Cluster cluster(2);
  from.Fill(1);
  Notification start[8], deliver[8];
  Outcomes written, older, newer;
  // Connects first: over an unfinished connection, large writes are offered at no certain time.
  cluster[0].WriteBlock(1, Block(0, 1000, 0, 1000), from.rows(), written.Next());
  ASSERT_TRUE(written.Wait(1));
  from.Fill(2);
  int attempt = 0;
  const auto under_way = [&] {
    // The staging of the previous write is released after its answer.
    EXPECT_TRUE(Eventually([&] { return cluster[1].counters().staging_bytes == 0; }));
    // Requests posted while the sender's thread is held begin together: the write is offered, and
    // then the thread is held again before it can deliver.
    cluster[0].Quiesce(0, [&, attempt] { start[attempt].Wait(); });
    cluster[0].WriteBlock(1, Block(0, 1000, 0, 1000), from.rows(), written.Next());
    cluster[0].Quiesce(0, [&, attempt] { deliver[attempt].Wait(); });
    start[attempt].Notify();
    for (int i = 0; i < 200; ++i, absl::SleepFor(absl::Milliseconds(2))) {
      // The rows are not contiguous there, so the receive is staged.
      if (cluster[1].counters().staging_bytes > 0) return true;
    }
    deliver[attempt].Notify();
    EXPECT_TRUE(written.Wait(attempt + 2));
    return false;
  };
  while (!under_way()) ASSERT_LT(++attempt, 8) << "no receive stays under way";
  cluster[1].SetWorld(2, 1, kKey);
  cluster[1].Quiesce(2, [&newer] { newer.Add(absl::OkStatus()); });
  cluster[1].Quiesce(1, [&older] { older.Add(absl::OkStatus()); });
  EXPECT_TRUE(older.Wait(1));
  EXPECT_EQ(newer.all().size(), 0u);
  deliver[attempt].Notify();
  EXPECT_TRUE(newer.Wait(1));
  EXPECT_EQ(cluster[1].counters().staging_bytes, 0);
  EXPECT_EQ(cluster.nodes[1]->store.memory[999 * 1024 + 999], from.rows().data[999 * 1000 + 999]);
}

TEST(TransportBulk, ManyRequestsBothWaysAtOnce) {
  Cluster cluster(2);
  std::list<Patch> patches;
  Outcomes written, read;
  for (int i = 0; i < 200; ++i) {
    for (int node : {0, 1}) {
      const int64_t cols = i % 2 == 0 ? 1000 : 333;
      Patch& from = patches.emplace_back(5, cols, cols);
      from.Fill(i);
      cluster[node].WriteBlock(1 - node, Block(5 * i, 5 * i + 5, 0, cols), from.rows(),
                               written.Next());
    }
  }
  ASSERT_TRUE(written.Wait(400));
  for (const absl::Status& status : written.all()) EXPECT_TRUE(status.ok()) << status;
  std::list<std::pair<int, Patch>> back;
  for (int i = 0; i < 200; ++i) {
    for (int node : {0, 1}) {
      const int64_t cols = i % 2 == 0 ? 1000 : 333;
      Patch& to = back.emplace_back(i, Patch(5, cols, cols + 11)).second;
      cluster[node].ReadBlock(1 - node, Block(5 * i, 5 * i + 5, 0, cols), to.rows(), read.Next());
    }
  }
  ASSERT_TRUE(read.Wait(400));
  for (const absl::Status& status : read.all()) EXPECT_TRUE(status.ok()) << status;
  for (const auto& [i, to] : back) EXPECT_EQ(to.Wrong(i), std::nullopt);
}

}  // namespace
}  // namespace agmm
