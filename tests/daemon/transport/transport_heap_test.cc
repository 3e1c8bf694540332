// Rows in heaps that the host cannot address, which travel through staging memory, Heap::Read and
// Heap::Write.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/transport/transport_harness.h"
#include "tests/support/hidden_heap.h"

namespace agmm {
namespace {

// The rows of the patch, in a heap.
struct Hidden {
  explicit Hidden(Patch& patch)
      : heap(patch.memory()),
        rows(RowsAt(
            &heap,
            {Patch::kMargin, patch.rows().rows, patch.rows().row_bytes, patch.rows().pitch_bytes},
            patch.rows().padded)) {}
  test::HiddenHeap heap;
  const Rows rows;
};

TEST(TransportHeap, RowsOfEveryFormArriveExactly) {
  Cluster cluster(2);
  int step = 0;
  for (int64_t row_bytes : {2, 1000, 8192}) {
    const int64_t padded_pitch = (row_bytes + 127) / 128 * 128;
    for (int64_t rows : {3, 100}) {  // eager and by rendezvous
      for (int64_t from_pitch : {row_bytes, padded_pitch}) {
        for (int64_t to_pitch : {padded_pitch, 2 * padded_pitch}) {
          for (int form = 0; form < 16; ++form) {
            const bool from_hidden = form & 1, to_hidden = form & 2;
            if (!from_hidden && !to_hidden) continue;
            SCOPED_TRACE(absl::StrCat(rows, " rows of ", row_bytes, ", pitch ", from_pitch, " to ",
                                      to_pitch, ", form ", form));
            Patch from(rows, row_bytes, from_pitch, form & 4),
                to(rows, row_bytes, to_pitch, form & 8);
            const Hidden source(from), target(to);
            from.Fill(++step);
            const Message message{1, 1, 0, step, 0};
            cluster.receiver(1).Expect(message, to_hidden ? target.rows : to.rows());
            Outcomes sent;
            cluster[0].Send(1, message, from_hidden ? source.rows : from.rows(), sent.Next());
            ASSERT_TRUE(sent.Wait(1));
            ASSERT_TRUE(cluster.receiver(1).arrived.Wait(step));
            ASSERT_TRUE(sent.all()[0].ok()) << sent.all()[0];
            ASSERT_TRUE(cluster.receiver(1).arrived.all()[step - 1].ok());
            ASSERT_EQ(to.Wrong(step), std::nullopt);
          }
        }
      }
    }
  }
  EXPECT_TRUE(Eventually([&] { return cluster[0].counters().staging_bytes == 0; }));
  EXPECT_TRUE(Eventually([&] { return cluster[1].counters().staging_bytes == 0; }));
}

TEST(TransportHeap, AParkedMessageArrivesInTheHeap) {
  Cluster cluster(2);
  for (int64_t rows : {3, 700}) {
    Patch from(rows, 8192, 8192), to(rows, 8192, 8320);
    const Hidden target(to);
    from.Fill(rows);
    const Message message{1, 1, 0, static_cast<int>(rows), 0};
    const size_t before = cluster.receiver(1).arrived.all().size();
    Outcomes sent;
    cluster[0].Send(1, message, from.rows(), sent.Next());
    EXPECT_TRUE(Eventually([&] { return cluster[1].counters().parked == 1; }));
    cluster.receiver(1).Expect(message, target.rows);
    cluster[1].Resume();
    ASSERT_TRUE(cluster.receiver(1).arrived.Wait(before + 1));
    ASSERT_TRUE(sent.Wait(1));  // until then the sender reads the patch
    EXPECT_EQ(to.Wrong(rows), std::nullopt);
  }
}

TEST(TransportHeap, ABlockIsWrittenAndReadBack) {
  Cluster cluster(2);
  MatrixStore& store = cluster.nodes[1]->store;
  test::HiddenHeap heap(absl::MakeSpan(store.memory));
  store.Hide(&heap);
  uint64_t seed = 0;
  for (const BulkBlock& block : {BulkBlock{7, 0, 3, 10, 5, 12}, BulkBlock{7, 0, 0, 1000, 0, 1000},
                                 BulkBlock{7, 0, 1, 1000, 999, 1000}}) {
    const int64_t rows = block.row_end - block.row_begin, cols = block.col_end - block.col_begin;
    SCOPED_TRACE(absl::StrCat(rows, " x ", cols));
    std::vector<std::byte> expected = store.memory;
    Patch from(rows, cols, cols + 24), to(rows, cols, cols + 57);
    from.Fill(++seed);
    Outcomes done;
    cluster[0].WriteBlock(1, block, from.rows(), done.Next());
    ASSERT_TRUE(done.Wait(1));
    ASSERT_TRUE(done.all()[0].ok()) << done.all()[0];
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(expected.data() + (block.row_begin + row) * 1024 + block.col_begin,
                  from.rows().data + row * from.rows().pitch_bytes, cols);
    }
    EXPECT_TRUE(store.memory == expected);
    cluster[0].ReadBlock(1, block, to.rows(), done.Next());
    ASSERT_TRUE(done.Wait(2));
    ASSERT_TRUE(done.all()[1].ok()) << done.all()[1];
    EXPECT_EQ(to.Wrong(seed), std::nullopt);
  }
}

TEST(TransportHeap, AFailedHeapFailsItsSendsAndReceives) {
  Cluster cluster(2);
  int step = 0;
  for (int64_t rows : {3, 700}) {
    Patch from(rows, 8192, 8192), to(rows, 8192, 8320);
    Hidden source(from), target(to);
    source.heap.Fail(absl::InternalError("the GPU was lost"));
    target.heap.Fail(absl::InternalError("the GPU was lost"));
    Outcomes sent;
    cluster[0].Send(1, {1, 1, 0, ++step, 0}, source.rows, sent.Next());
    ASSERT_TRUE(sent.Wait(1));
    EXPECT_EQ(sent.all()[0].message(), "the GPU was lost");
    const Message message{1, 1, 0, ++step, 0};
    const size_t before = cluster.receiver(1).arrived.all().size();
    cluster.receiver(1).Expect(message, target.rows);
    cluster[0].Send(1, message, from.rows(), sent.Next());
    ASSERT_TRUE(cluster.receiver(1).arrived.Wait(before + 1));
    EXPECT_EQ(cluster.receiver(1).arrived.all()[before].message(), "the GPU was lost");
    ASSERT_TRUE(sent.Wait(2));  // until then the sender reads the patch
  }
  MatrixStore& store = cluster.nodes[1]->store;
  test::HiddenHeap heap(absl::MakeSpan(store.memory));
  store.Hide(&heap);
  heap.Fail(absl::InternalError("the GPU was lost"));
  Patch patch(1000, 1000, 1000);
  Outcomes done;
  cluster[0].WriteBlock(1, {7, 0, 0, 1000, 0, 1000}, patch.rows(), done.Next());
  cluster[0].ReadBlock(1, {7, 0, 0, 1000, 0, 1000}, patch.rows(), done.Next());
  ASSERT_TRUE(done.Wait(2));
  for (const absl::Status& status : done.all())
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("the GPU was lost"));
  EXPECT_TRUE(Eventually([&] { return cluster[1].counters().staging_bytes == 0; }));
}

}  // namespace
}  // namespace agmm
