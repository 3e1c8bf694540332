// Tensors through the public library.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using LibraryTensor = LibraryTest;

TEST_F(LibraryTensor, AGetReturnsTheContentsOfThePut) {
  const auto client = Connect();
  const std::vector<float> a = Integers(kM * kK, 1);
  const auto put = client->Put("A", SpecA(), a.data(), BytesIn(a));
  ASSERT_TRUE(put.ok()) << put.status().ToString();
  EXPECT_EQ(put->spec.mesh, "x=2");
  EXPECT_TRUE(put->has_contents);
  std::vector<float> back(a.size());
  const auto got = client->Get("A", back.data(), BytesIn(back));
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(back, a);
  EXPECT_EQ(got->version, put->version);
}

TEST_F(LibraryTensor, CallbacksSeeEachByteInOrder) {
  const auto client = Connect();
  const TensorSpec spec = {.rows = 700, .cols = 1001, .sharding = "[M, N_x]"};
  const int64_t total = 700 * 1001 * 4;
  const std::vector<float> values = Integers(700 * 1001, 3);
  const char* const bytes = reinterpret_cast<const char*>(values.data());
  std::vector<int64_t> moved;
  TransferOptions options;
  options.progress = [&](int64_t now, int64_t of) {
    EXPECT_EQ(of, total);
    moved.push_back(now);
  };
  const auto put = client->Put(
      "T", spec,
      [&](int64_t offset, std::byte* into, int64_t size) {
        std::memcpy(into, bytes + offset, size);
        return Status();
      },
      options);
  ASSERT_TRUE(put.ok()) << put.status().ToString();
  EXPECT_GT(moved.size(), 1u);
  EXPECT_TRUE(std::is_sorted(moved.begin(), moved.end()));
  EXPECT_EQ(moved.back(), total);

  moved.clear();
  std::string back;
  const auto got = client->Get(
      "T",
      [&](int64_t offset, const std::byte* from, int64_t size) {
        EXPECT_EQ(offset, static_cast<int64_t>(back.size()));
        back.append(reinterpret_cast<const char*>(from), size);
        return Status();
      },
      options);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_TRUE(back == std::string(bytes, total));
  EXPECT_EQ(moved.back(), total);
}

TEST_F(LibraryTensor, AnotherSizeIsRefusedBeforeAnythingMoves) {
  const auto client = Connect();
  std::vector<float> a = Integers(kM * kK, 1);
  const auto put = client->Put("A", SpecA(), a.data(), BytesIn(a) - 4);
  EXPECT_EQ(put.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(put.status().message(), HasSubstr("5996 bytes are given"));
  EXPECT_EQ(client->Find("A").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(client->Put("A", SpecA(), a.data(), BytesIn(a)).ok());
  EXPECT_EQ(client->Get("A", a.data(), BytesIn(a) - 4).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client->Put("A", {.rows = -1, .cols = 5}, a.data(), 0).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(LibraryTensor, ACallbacksErrorEndsTheTransferAndLeavesNothing) {
  const auto client = Connect();
  const Status mine(StatusCode::kOutOfRange, "the disk is empty");
  const auto put = client->Put("A", SpecA(), [&](int64_t, std::byte*, int64_t) { return mine; });
  EXPECT_EQ(put.status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(put.status().message(), "the disk is empty");
  EXPECT_EQ(client->Find("A").status().code(), StatusCode::kNotFound);
  PutAB(*client);
  const auto got = client->Get("A", [&](int64_t, const std::byte*, int64_t) { return mine; });
  EXPECT_EQ(got.status().code(), StatusCode::kOutOfRange);
}

TEST_F(LibraryTensor, APutWaitsNoLongerThanItsTimeout) {
  const auto client = Connect();
  PutAB(*client);
  const JobHandle job = Submit(*client, LongRequest());
  const std::vector<float> a = Integers(kM * kK, 5);
  const auto put = client->Put("A", SpecA(), a.data(), BytesIn(a),
                               {.timeout = Milliseconds(200), .progress = nullptr});
  EXPECT_EQ(put.status().code(), StatusCode::kDeadlineExceeded) << put.status().ToString();
  EXPECT_TRUE(job.Cancel().ok());
}

TEST_F(LibraryTensor, TensorsAreListedFoundFilledAndDeleted) {
  const auto client = Connect();
  const auto created = client->Create("E", SpecA());
  ASSERT_TRUE(created.ok()) << created.status().ToString();
  EXPECT_FALSE(created->has_contents);
  const auto filled = client->Fill("F", SpecA(), {.kind = Filling::Kind::kConstant, .value = 2.5});
  ASSERT_TRUE(filled.ok()) << filled.status().ToString();
  std::vector<float> values(kM * kK);
  ASSERT_TRUE(client->Get("F", values.data(), BytesIn(values)).ok());
  EXPECT_EQ(values, std::vector<float>(kM * kK, 2.5f));
  const auto list = client->List();
  ASSERT_TRUE(list.ok());
  std::vector<std::string> names;
  for (const TensorInfo& tensor : *list) names.push_back(tensor.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("E", "F"));
  const auto found = client->Find("F");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->id, filled->id);
  EXPECT_EQ(found->spec.rows, kM);
  EXPECT_EQ(found->spec.sharding, "[M_x, K]");
  EXPECT_TRUE(client->Delete("F").ok());
  EXPECT_EQ(client->Delete("F").code(), StatusCode::kNotFound);
}

TEST_F(LibraryTensor, ADestroyedClientWaitsForItsTransfers) {
  std::unique_ptr<Client> client = Connect();
  const std::vector<float> a = Integers(kM * kK, 1);
  ASSERT_TRUE(client->Put("A", SpecA(), a.data(), BytesIn(a)).ok());
  std::atomic<bool> began = false, destroyed = false;
  std::thread getter([&, client = client.get()] {
    (void)client->Get("A", [&](int64_t, const std::byte*, int64_t) {
      began = true;
      // Gives the destructor time to return, which would be wrong.
      absl::SleepFor(absl::Milliseconds(100));
      EXPECT_FALSE(destroyed);
      return Status();
    });
  });
  EXPECT_TRUE(Eventually([&] { return began.load(); }));
  client.reset();
  destroyed = true;
  getter.join();
}

TEST_F(LibraryTensor, ATensorOnSomeRanksTakesNothingOnOthers) {
  const auto client = Connect();
  const auto before = client->World();
  ASSERT_TRUE(before.ok());
  TensorSpec spec = SpecA();
  spec.ranks = {1};
  const auto filled = client->Fill("F", spec, {});
  ASSERT_TRUE(filled.ok()) << filled.status().ToString();
  EXPECT_EQ(filled->spec.mesh, "x=1");
  EXPECT_THAT(filled->spec.ranks, ElementsAre(1));
  const auto after = client->World();
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->devices[0].free_bytes, before->devices[0].free_bytes);
  EXPECT_LT(after->devices[1].free_bytes, before->devices[1].free_bytes);
}

TEST_F(LibraryTensor, TheTensorsOfASessionEndWithTheirClient) {
  const auto other = Connect();
  {
    const auto client = Connect(/*session=*/true);
    PutAB(*client);
    EXPECT_TRUE(client->Find("A")->of_session);
    EXPECT_TRUE(other->Find("A").ok());
  }
  EXPECT_TRUE(
      Eventually([&] { return other->Find("A").status().code() == StatusCode::kNotFound; }));
}

TEST_F(LibraryTensor, ASessionRewritesAPermanentTensorButDoesNotReplaceIt) {
  const auto other = Connect();
  PutAB(*other);
  {
    const auto client = Connect(/*session=*/true);
    PutAB(*client, "", 5);
    const std::vector<float> row(kK);
    const auto put =
        client->Put("A", {.rows = 1, .cols = kK, .sharding = "[M, K]"}, row.data(), BytesIn(row));
    EXPECT_EQ(put.status().code(), StatusCode::kFailedPrecondition) << put.status().ToString();
    EXPECT_THAT(put.status().message(), HasSubstr("\"A\""));
    const JobHandle job = Submit(*client, Request());
    ASSERT_TRUE(job.Wait(kPatienceMs).ok());
  }
  EXPECT_TRUE(
      Eventually([&] { return other->Find("C").status().code() == StatusCode::kNotFound; }));
  std::vector<float> a(kM * kK);
  ASSERT_TRUE(other->Get("A", a.data(), BytesIn(a)).ok());
  EXPECT_EQ(a, Integers(kM * kK, 5));
  EXPECT_TRUE(other->Find("B").ok());
}

TEST_F(LibraryTensor, APutResumesAfterABrokenConnection) {
  const auto proxy = MakeProxy();
  const auto client = Connect(/*session=*/false, proxy->endpoint());
  const std::vector<float> values = Integers(700 * 1001, 3);
  bool cut = false;
  const auto put =
      client->Put("T", {.rows = 700, .cols = 1001, .sharding = "[M, N_x]"},
                  [&](int64_t offset, std::byte* into, int64_t size) {
                    if (offset > 0 && !std::exchange(cut, true)) proxy->Cut();
                    std::memcpy(into, reinterpret_cast<const char*>(values.data()) + offset, size);
                    return Status();
                  });
  ASSERT_TRUE(put.ok()) << put.status().ToString();
  EXPECT_TRUE(cut);
  std::vector<float> back(values.size());
  ASSERT_TRUE(client->Get("T", back.data(), BytesIn(back)).ok());
  EXPECT_TRUE(back == values);
}

TEST(Library, AMissingDaemonIsReportedAtOnce) {
  const HeldPorts port(1);
  const auto client = Client::Connect({.endpoint = "127.0.0.1:" + std::to_string(port[0])});
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(client.status().message(), HasSubstr("no daemon answers at"));
  EXPECT_THAT(client.status().message(), HasSubstr("give the endpoint of one: host:port"));
  EXPECT_EQ(Client::Connect({.endpoint = "nonsense"}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(LibraryDeathTest, TheValueOfAnErrorEndsTheProcess) {
  const Result<int> error = Status(StatusCode::kNotFound, "there is no such thing");
  EXPECT_DEATH(error.value(), "agmm: NOT_FOUND: there is no such thing");
}

}  // namespace
}  // namespace agmm
