#include "daemon/transport/ucx_transport.h"

#include <list>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/failpoint.h"
#include "tests/daemon/transport/transport_harness.h"

namespace agmm {
namespace {

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// Sends `from` as `message` and checks that it arrives in `to`, and only there.
void ExpectCarried(Cluster& cluster, const Message& message, Patch& from, Patch& to) {
  from.Fill(message.step + 1);
  cluster.receiver(1).Expect(message, to.rows());
  Outcomes sent;
  const size_t before = cluster.receiver(1).arrived.all().size();
  cluster[0].Send(1, message, from.rows(), sent.Next());
  ASSERT_TRUE(sent.Wait(1));
  ASSERT_TRUE(cluster.receiver(1).arrived.Wait(before + 1));
  ExpectAllOk(sent.all());
  ExpectAllOk(cluster.receiver(1).arrived.all());
  EXPECT_EQ(to.Wrong(message.step + 1), std::nullopt);
  EXPECT_EQ(cluster.receiver(1).arrivals(message), 1);
}

TEST(Transport, SignalsArriveOnce) {
  Cluster cluster(3);
  Outcomes sent;
  for (int i = 0; i < 100; ++i) {
    const Message message{9, 1, 0, i, 0};
    cluster.receiver(1 + i % 2).Expect(message, {});
    cluster[0].Send(1 + i % 2, message, {}, sent.Next());
  }
  ASSERT_TRUE(sent.Wait(100));
  ExpectAllOk(sent.all());
  for (int node : {1, 2}) {
    ASSERT_TRUE(cluster.receiver(node).arrived.Wait(50));
    ExpectAllOk(cluster.receiver(node).arrived.all());
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cluster.receiver(1 + i % 2).arrivals({9, 1, 0, i, 0}), 1);
  EXPECT_EQ(cluster[0].counters().plan.messages_sent, 100);
  EXPECT_EQ(cluster[1].counters().plan.messages_received, 50);
}

TEST(Transport, ContiguousBytesOfEverySizeArriveExactly) {
  Cluster cluster(2);
  int step = 0;
  for (int64_t size : {0, 1, 7, 127, 4096, 65535, 65536, 65537, 1 << 20, 9 << 20}) {
    SCOPED_TRACE(absl::StrCat(size, " bytes"));
    Patch from(1, size, size), to(1, size, size);
    ExpectCarried(cluster, {1, 1, 0, step++, 0}, from, to);
  }
  EXPECT_EQ(cluster[0].counters().staging_bytes_peak, 0);
  EXPECT_EQ(cluster[1].counters().staging_bytes_peak, 0);
  EXPECT_EQ(cluster[1].counters().plan.bytes_received, cluster[0].counters().plan.bytes_sent);
}

TEST(Transport, RowsOfEveryFormArriveExactly) {
  Cluster cluster(2);
  int step = 0;
  for (int64_t row_bytes : {2, 40, 128, 130, 666, 8192}) {
    const int64_t padded_pitch = (row_bytes + 127) / 128 * 128;
    for (int64_t rows : {1, 3, 700}) {
      for (int64_t from_pitch : {row_bytes, padded_pitch, 2 * padded_pitch}) {
        for (int64_t to_pitch : {row_bytes, padded_pitch, 2 * padded_pitch}) {
          for (int padded : {0, 1, 2, 3}) {
            SCOPED_TRACE(absl::StrCat(rows, " rows of ", row_bytes, ", pitch ", from_pitch, " to ",
                                      to_pitch, ", padded ", padded));
            Patch from(rows, row_bytes, from_pitch, padded & 1),
                to(rows, row_bytes, to_pitch, padded & 2);
            ExpectCarried(cluster, {1, 1, 0, step++, 0}, from, to);
          }
        }
      }
    }
  }
  EXPECT_TRUE(Eventually([&] { return cluster[0].counters().staging_bytes == 0; }));
  EXPECT_TRUE(Eventually([&] { return cluster[1].counters().staging_bytes == 0; }));
  EXPECT_EQ(cluster[1].counters().dropped(), 0);
}

TEST(Transport, PaddedRowsTravelWithoutACopy) {
  Cluster cluster(2);
  Patch from(1000, 666, 768, true), to(1000, 666, 768, true);
  ExpectCarried(cluster, {1, 1, 0, 0, 0}, from, to);
  EXPECT_EQ(cluster[0].counters().staging_bytes_peak, 0);
  EXPECT_EQ(cluster[1].counters().staging_bytes_peak, 0);
}

// By its sizes, a slab of columns in a wider block looks like padded rows; its neighbours must not
// be overwritten.
TEST(Transport, NeighbouringColumnsAreNotOverwritten) {
  Cluster cluster(2);
  Patch from(2000, 40, 128, true), to(2000, 40, 128, false);
  ExpectCarried(cluster, {1, 1, 0, 0, 0}, from, to);
}

TEST(Transport, RandomMessagesFromManyThreadsBothWays) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  constexpr int kThreads = 4, kEach = 2500;
  Cluster cluster(2);
  // Thread t of node n sends to the other node; its messages are known by (n, t, i).
  std::list<Patch> patches;
  std::vector<std::tuple<int, Message, Patch*, Patch*>> all;
  std::mt19937_64 random(seed);
  for (int node : {0, 1}) {
    for (int t = 0; t < kThreads / 2; ++t) {
      for (int i = 0; i < kEach; ++i) {
        const int64_t row_bytes = random() % 100 == 0 ? random() % 100'000 : random() % 300;
        const int64_t rows = 1 + random() % 5,
                      pitch = row_bytes + (random() % 2) * (random() % 200);
        Patch& from = patches.emplace_back(rows, row_bytes, rows == 1 ? row_bytes : pitch);
        Patch& to = patches.emplace_back(rows, row_bytes, row_bytes + random() % 64);
        const Message message{5, 1, node, t * kEach + i, 0};
        from.Fill(i);
        cluster.receiver(1 - node).Expect(message, to.rows());
        all.emplace_back(node, message, &from, &to);
      }
    }
  }
  Outcomes sent;
  std::vector<std::thread> threads;
  const size_t share = all.size() / kThreads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t * share; i < (t + 1) * share; ++i) {
        const auto& [node, message, from, to] = all[i];
        cluster[node].Send(1 - node, message, from->rows(), sent.Next());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(sent.Wait(all.size()));
  ExpectAllOk(sent.all());
  for (int node : {0, 1}) {
    ASSERT_TRUE(cluster.receiver(node).arrived.Wait(all.size() / 2));
    ExpectAllOk(cluster.receiver(node).arrived.all());
    EXPECT_EQ(cluster[node].counters().dropped(), 0);
  }
  for (const auto& [node, message, from, to] : all) {
    ASSERT_EQ(to->Wrong(message.step % kEach), std::nullopt) << "step " << message.step;
    ASSERT_EQ(cluster.receiver(1 - node).arrivals(message), 1);
  }
}

TEST(Transport, ParkedMessagesWaitForTheReceiver) {
  Cluster cluster(2);
  constexpr int64_t kSizes[] = {0, 100, 1 << 20};  // a signal, an eager message, a rendezvous
  std::list<Patch> from, to;
  Outcomes sent;
  for (int i = 0; i < 60; ++i) {
    const int64_t size = kSizes[i % 3];
    from.emplace_back(1, size, size).Fill(i);
    to.emplace_back(1, size, size);
    cluster[0].Send(1, {1, 2, 0, i, 0}, from.back().rows(), sent.Next());
  }
  ASSERT_TRUE(Eventually([&] { return cluster[1].counters().parked == 60; }));
  EXPECT_TRUE(cluster.receiver(1).arrived.all().empty());
  // One half is wanted now, the other half later.
  for (int half : {0, 1}) {
    auto place = to.begin();
    for (int i = 0; i < 60; ++i, ++place) {
      if (i % 2 == half) cluster.receiver(1).Expect({1, 2, 0, i, 0}, place->rows());
    }
    cluster[1].Resume();
    ASSERT_TRUE(cluster.receiver(1).arrived.Wait(30 * (half + 1)));
    EXPECT_TRUE(Eventually([&] { return cluster[1].counters().parked == 30 * (1 - half); }));
  }
  ASSERT_TRUE(sent.Wait(60));
  ExpectAllOk(sent.all());
  ExpectAllOk(cluster.receiver(1).arrived.all());
  int i = 0;
  for (const Patch& patch : to) EXPECT_EQ(patch.Wrong(i++), std::nullopt);
}

TEST(Transport, PushedBytesDoNotWaitForARequest) {
  constexpr int64_t kBytes = 512 << 10;
  Patch from(1, kBytes, kBytes), to(1, kBytes, kBytes);  // outlive the sends
  Cluster cluster(2);
  from.Fill(7);
  Outcomes pushed, asked;
  cluster[0].Send(1, {1, 2, 0, 0, 0}, from.rows(), asked.Next());
  cluster[0].Send(1, {1, 2, 0, 1, 0, /*push=*/true}, from.rows(), pushed.Next());
  ASSERT_TRUE(Eventually([&] { return cluster[1].counters().parked == 2; }));
  ASSERT_TRUE(pushed.Wait(1));
  ExpectAllOk(pushed.all());
  EXPECT_TRUE(asked.all().empty());
  cluster.receiver(1).Expect({1, 2, 0, 1, 0}, to.rows());
  cluster[1].Resume();
  ASSERT_TRUE(cluster.receiver(1).arrived.Wait(1));
  ExpectAllOk(cluster.receiver(1).arrived.all());
  EXPECT_EQ(to.Wrong(7), std::nullopt);
}

TEST(Transport, NoMoreThan64MiBOfAPeersSmallMessagesAreParked) {
  constexpr int64_t kEager = 60000, kRendezvous = 1 << 20, kKept = (64 << 20) / kEager;
  Patch small(1, kEager, kEager), large(1, kRendezvous, kRendezvous);  // outlive the sends
  Cluster cluster(3);
  Outcomes sent;
  const int count = kKept + 50;
  for (int i = 0; i < count; ++i) cluster[0].Send(2, {1, 2, 0, i, 0}, small.rows(), sent.Next());
  ASSERT_TRUE(Eventually([&] { return cluster.receiver(2).offered() == count; }));
  EXPECT_TRUE(Eventually([&] { return cluster[2].counters().parked == kKept; }));
  EXPECT_TRUE(Eventually([&] { return cluster[2].counters().too_many_parked == 50; }));
  ASSERT_TRUE(cluster.receiver(2).lost.Wait(50));
  for (const absl::Status& why : cluster.receiver(2).lost.all()) {
    EXPECT_EQ(why.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(why.message()), testing::HasSubstr("node 0 is 1119 messages ahead"));
  }
  // Other peers' messages, and large ones, whose bytes stay with the sender, do not count.
  cluster[1].Send(2, {1, 2, 1, 0, 0}, small.rows(), sent.Next());
  for (int i = 0; i < 100; ++i)
    cluster[0].Send(2, {1, 2, 0, count + i, 0}, large.rows(), sent.Next());
  EXPECT_TRUE(Eventually([&] { return cluster[2].counters().parked == kKept + 101; }));
  EXPECT_EQ(cluster[2].counters().too_many_parked, 50);
}

TEST(Transport, ANewGenerationDropsParkedMessages) {
  Cluster cluster(2);
  Patch from(1, 1 << 20, 1 << 20);
  Outcomes sent;
  cluster[0].Send(1, {1, 2, 0, 0, 0}, from.rows(), sent.Next());
  cluster[0].Send(1, {1, 2, 0, 1, 0}, {}, sent.Next());
  ASSERT_TRUE(Eventually([&] { return cluster[1].counters().parked == 2; }));
  cluster[1].SetWorld(2, 1, kKey);
  EXPECT_TRUE(Eventually([&] { return cluster[1].counters().parked == 0; }));
  EXPECT_EQ(cluster[1].counters().stale_generation, 2);
  ASSERT_TRUE(sent.Wait(2));  // the sender may reuse its memory
}

TEST(Transport, MessagesOfAnotherGenerationAreDropped) {
  Cluster cluster(2);
  cluster.receiver(1).TakeAll();
  cluster[1].SetWorld(2, 1, kKey);
  Outcomes sent;
  Patch from(1, 1 << 20, 1 << 20);
  cluster[0].Send(1, {1, 1, 0, 0, 0}, {}, sent.Next());
  cluster[0].Send(1, {1, 1, 0, 1, 0}, from.rows(), sent.Next());
  ASSERT_TRUE(sent.Wait(2));
  EXPECT_TRUE(Eventually([&] { return cluster[1].counters().stale_generation == 2; }));
  cluster[0].SetWorld(2, 0, kKey);
  cluster[0].Send(1, {1, 1, 0, 2, 0}, {}, sent.Next());
  ASSERT_TRUE(cluster.receiver(1).arrived.Wait(1));
  EXPECT_EQ(cluster.receiver(1).offered(), 1);
}

TEST(Transport, MessagesUnderAnotherKeyAreDropped) {
  Cluster cluster(2);
  cluster.receiver(1).TakeAll();
  std::array<uint8_t, 16> other = kKey;
  other[15] ^= 1;
  cluster[0].SetWorld(1, 0, other);
  Outcomes sent, written;
  Patch from(1, 100, 100);
  cluster[0].Send(1, {1, 1, 0, 0, 0}, from.rows(), sent.Next());
  cluster[0].WriteBlock(1, {7, 0, 0, 1, 0, 100}, from.rows(), written.Next());
  ASSERT_TRUE(sent.Wait(1));
  EXPECT_TRUE(Eventually([&] { return cluster[1].counters().bad_check == 2; }));
  EXPECT_EQ(cluster.receiver(1).offered(), 0);
  EXPECT_EQ(cluster.nodes[1]->store.memory[0], kPoison);
  cluster[0].SetWorld(2, 0, kKey);  // the request that is never answered ends with its generation
  ASSERT_TRUE(written.Wait(1));
  EXPECT_EQ(written.all()[0].code(), absl::StatusCode::kAborted) << written.all()[0];
}

TEST(Transport, ALengthTheReceiverDoesNotExpectFailsTheArrival) {
  Cluster cluster(2);
  Patch from(1, 1000, 1000), to(1, 999, 999), large(1, 1 << 20, 1 << 20);
  cluster.receiver(1).Expect({1, 1, 0, 0, 0}, to.rows());
  cluster.receiver(1).Expect({1, 1, 0, 1, 0}, to.rows());
  Outcomes sent;
  cluster[0].Send(1, {1, 1, 0, 0, 0}, from.rows(), sent.Next());
  cluster[0].Send(1, {1, 1, 0, 1, 0}, large.rows(), sent.Next());
  ASSERT_TRUE(sent.Wait(2));
  ASSERT_TRUE(cluster.receiver(1).arrived.Wait(2));
  for (const absl::Status& status : cluster.receiver(1).arrived.all()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("where 999 belong"));
  }
  EXPECT_EQ(cluster[1].counters().wrong_length, 2);
}

TEST(Transport, UnwantedMessagesAreCounted) {
  Cluster cluster(2);
  cluster.receiver(1).DropTheRest();
  Patch from(1, 1 << 20, 1 << 20);
  Outcomes sent;
  cluster[0].Send(1, {1, 1, 0, 0, 0}, from.rows(), sent.Next());
  ASSERT_TRUE(sent.Wait(1));
  EXPECT_TRUE(Eventually([&] { return cluster[1].counters().unknown == 1; }));
}

TEST(Transport, ImpossibleSendsFailWithTheReason) {
  Cluster cluster(2);
  Node alone;
  Patch from(4, 100, 100);
  const auto status_of = [&](UcxTransport& transport, int node, Rows rows) {
    Outcomes sent;
    transport.Send(node, {1, 1, 0, 0, 0}, rows, sent.Next());
    EXPECT_TRUE(sent.Wait(1));
    return sent.all().at(0).code();
  };
  EXPECT_EQ(status_of(*alone.transport, 1, from.rows()), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status_of(cluster[0], 0, from.rows()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of(cluster[0], -1, from.rows()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of(cluster[0], 5, from.rows()), absl::StatusCode::kAborted);
  Rows overlapping = from.rows();
  overlapping.pitch_bytes = 99;
  EXPECT_EQ(status_of(cluster[0], 1, overlapping), absl::StatusCode::kInvalidArgument);
  Rows endless = from.rows();
  endless.rows = int64_t{1} << 60;
  EXPECT_EQ(status_of(cluster[0], 1, endless), absl::StatusCode::kInvalidArgument);
}

TEST(Transport, AddressesThatNoTransportMadeAreRefused) {
  Cluster cluster(2);
  const std::string right = cluster.nodes[1]->port.address;
  std::string address = right;
  address.back() ^= 1;
  EXPECT_EQ(cluster[0].Connect(1, address).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster[0].Connect(1, "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster[0].Connect(-1, right).code(), absl::StatusCode::kInvalidArgument);
  MapReceiver receiver;
  MatrixStore store(1, 1, 1);
  TransportOptions elsewhere;
  elsewhere.bind_address = "192.0.2.1";
  EXPECT_EQ(UcxTransport::Create(elsewhere, &receiver, &store).status().code(),
            absl::StatusCode::kInvalidArgument);
}

#ifdef AGMM_FAILPOINTS
TEST(Transport, FailpointsDropAndDelay) {
  Cluster cluster(2);
  cluster.receiver(1).TakeAll();
  Outcomes sent;
  failpoint::Arm("transport.drop", 1);
  cluster[0].Send(1, {1, 1, 0, 0, 0}, {}, sent.Next());
  ASSERT_TRUE(sent.Wait(1));
  failpoint::Arm("transport.delay");
  for (int i = 1; i < 50; ++i) cluster[0].Send(1, {1, 1, 0, i, 0}, {}, sent.Next());
  EXPECT_TRUE(cluster.receiver(1).arrived.Wait(49));
  failpoint::Disarm("transport.delay");
  failpoint::Disarm("transport.drop");
  ASSERT_TRUE(sent.Wait(50));
  ExpectAllOk(sent.all());
  EXPECT_EQ(cluster.receiver(1).arrivals({1, 1, 0, 0, 0}), 0);
}
#endif

}  // namespace
}  // namespace agmm
