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

TEST(TransportBulk, WritesAreInPlaceWhenReportedDone) {
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

TEST(TransportBulk, RefusalsReachTheSenderAndTouchNothing) {
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

TEST(TransportBulk, InvalidBlocksAreDroppedAndFailWithTheGeneration) {
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

TEST(TransportBulk, NothingArrivesAfterARenewal) {
  Patch from(1000, 1000, 1000);  // outlives the writes
  for (int attempt = 0; attempt < 20; ++attempt) {
    Cluster cluster(2);
    Outcomes written;
    from.Fill(attempt + 1);
    cluster[0].WriteBlock(1, Block(0, 1000, 0, 1000), from.rows(), written.Next());
    // The renewal comes at a random moment of the write.
    absl::SleepFor(absl::Microseconds(200 * attempt));
    Renewed(*cluster.nodes[1]->transport);
    const std::vector<std::byte> before = cluster.nodes[1]->store.memory;
    Renewed(*cluster.nodes[0]->transport);
    ASSERT_TRUE(written.Wait(1));
    EXPECT_EQ(cluster.nodes[1]->store.memory, before);
    EXPECT_EQ(cluster[1].counters().staging_bytes, 0);
    EXPECT_EQ(cluster[0].counters().staging_bytes, 0);
  }
}

TEST(TransportBulk, APingIsAnswered) {
  Cluster cluster(2);
  Outcomes answers;
  cluster[0].Ping(1, answers.Next());
  cluster[1].Ping(0, answers.Next());
  ASSERT_TRUE(answers.Wait(2));
  for (const absl::Status& status : answers.all()) EXPECT_TRUE(status.ok()) << status;
  Renewed(*cluster.nodes[1]->transport);
  cluster[1].Ping(0, answers.Next());
  ASSERT_TRUE(answers.Wait(3));
  EXPECT_EQ(answers.all()[2].code(), absl::StatusCode::kAborted) << answers.all()[2];
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
