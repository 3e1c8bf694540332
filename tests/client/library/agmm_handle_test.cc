// Handles of tensors in place of their names.
#include <functional>
#include <stop_token>
#include <utility>

#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class LibraryHandle : public LibraryJobTest {
 protected:
  void SetUp() override {
    LibraryTest::SetUp();
    client_ = Connect(/*session=*/false, world_.socket(0));
    ASSERT_NE(client_, nullptr);
    PutAB(*client_);
  }
  std::string HandleOf(const std::string& name) {
    const auto found = client_->Find(name);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    return found.ok() ? found->handle : "";
  }
  TensorInfo PutA(const TensorSpec& spec, int seed) {
    const std::vector<float> a = Integers(spec.rows * spec.cols, seed);
    const auto put = client_->Put("A", spec, a.data(), BytesIn(a));
    EXPECT_TRUE(put.ok()) << put.status().ToString();
    return put.ok() ? *put : TensorInfo();
  }
  static JobRequest WithHandles(const std::string& a, const std::string& b, const std::string& c) {
    JobRequest request = Request();
    request.a = a;
    request.b = b;
    request.c = c;
    return request;
  }
  // Calls `expect` with the status of each call that takes a tensor, with `tensor` in its place.
  void WithEveryCall(const std::string& tensor,
                     const std::function<void(const std::string& call, const Status&)>& expect) {
    std::vector<float> a(kM * kK);
    expect("Get", client_->Get(tensor, a.data(), BytesIn(a)).status());
    expect("typed Get", client_->Get<float>(tensor).status());
    expect("GetAsync", client_->GetAsync(tensor, a.data(), BytesIn(a)).get().status());
    expect("Find", client_->Find(tensor).status());
    // The mapping ends before `expect` runs.
    const Status mapped = client_->Map(tensor, /*writable=*/true).status();
    expect("Map", mapped);
    const JobRequest request = WithHandles(tensor, "B", "C");
    expect("Submit", client_->Submit(request).status());
    expect("Run", client_->Run(request).status());
    std::promise<Status> ran;
    client_->Run(request, [&](const Outcome& done) { ran.set_value(done.status()); });
    expect("Run with a callback", ran.get_future().get());
    expect("Run with operands",
           client_->Run({.spec = "A[M_x, K] -> B[M, K]", .tensors = {{"A", tensor}, {"B", "W"}}})
               .status());
    expect("Delete", client_->Delete(tensor));
  }
  const std::vector<float> a_ = Integers(kM * kK, 1);
};

TEST_F(LibraryHandle, StandsForItsTensorInEveryCall) {
  const TensorInfo a = *client_->Find("A");
  EXPECT_THAT(a.handle, StartsWith("#" + std::to_string(a.id) + "@"));
  WithEveryCall(a.handle, [&](const std::string& call, const Status& status) {
    EXPECT_TRUE(status.ok()) << call << ": " << status.ToString();
    // Ended without a commit.
    if (call == "Map") PutA(SpecA(), 1);
  });
  EXPECT_EQ(client_->Find("A").status().code(), StatusCode::kNotFound);
  ExpectExact(*client_);
}

TEST_F(LibraryHandle, StandsForTheResultOfAJobToo) {
  ASSERT_TRUE(client_->Run(Request()).ok());
  const std::string c = HandleOf("C");
  const Outcome again = client_->Run(WithHandles(HandleOf("A"), HandleOf("B"), c));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(HandleOf("C"), c);
  EXPECT_EQ(*client_->Get<float>(c), Product(a_, Integers(kK * kN, 2)));
}

TEST_F(LibraryHandle, IsOneForAllClientsAndAllContents) {
  const std::string a = HandleOf("A");
  EXPECT_EQ(PutA(SpecA(), 5).handle, a);
  const auto other = Connect();
  const auto got = other->Get<float>(a);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(*got, Integers(kM * kK, 5));
  EXPECT_EQ(client_->List()->front().handle, a);
}

TEST_F(LibraryHandle, DoesNotStandForALaterTensorOfTheSameName) {
  const std::string old = HandleOf("A");
  TensorSpec spec = SpecA();
  spec.sharding = "[M, K_x]";
  const TensorInfo later = PutA(spec, 5);
  EXPECT_NE(later.handle, old);
  WithEveryCall(old, [&](const std::string& call, const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << call << ": " << status.ToString();
  });
  EXPECT_EQ(*client_->Get<float>("A"), Integers(kM * kK, 5));
  EXPECT_EQ(HandleOf("A"), later.handle);
}

TEST_F(LibraryHandle, IsLostWithItsDaemonAndReachesNoTensorOfTheNext) {
  const TensorInfo old = *client_->Find("A");
  const std::string old_b = HandleOf("B");
  world_.Kill(0);
  world_.Start(0);
  ASSERT_TRUE(world_.WaitReady(0));
  PutAB(*client_, "", 5);
  const TensorInfo now = *client_->Find("A");
  ASSERT_EQ(now.id, old.id);
  EXPECT_NE(now.handle, old.handle);
  const auto expect_lost = [](const std::string& call, const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kAborted) << call << ": " << status.ToString();
    EXPECT_EQ(status.reason(), "PEER_LOST") << call;
    EXPECT_THAT(status.message(), HasSubstr("; put the")) << call;
  };
  WithEveryCall(old.handle, expect_lost);
  for (const JobRequest& request :
       {WithHandles(now.handle, old_b, "C"), WithHandles(old.handle, HandleOf("B"), "C")}) {
    expect_lost("Submit of both", client_->Submit(request).status());
    expect_lost("Run of both", client_->Run(request).status());
  }
  // The others go on.
  ASSERT_TRUE(client_->Run(WithHandles(now.handle, HandleOf("B"), "C")).ok());
  ASSERT_TRUE(client_->Run(Request()).ok());
  ExpectExact(*client_, "", 5);
}

TEST_F(LibraryHandle, AStopCancelsARunWithHandles) {
  JobRequest request = LongRequest();
  request.a = HandleOf("A");
  request.b = HandleOf("B");
  std::stop_source stop;
  std::promise<Outcome> ran;
  std::future<Outcome> future = ran.get_future();
  client_->Run(
      request, [&](const Outcome& done) { ran.set_value(done); }, {}, stop.get_token());
  EXPECT_TRUE(Eventually([&] {
    const auto jobs = client_->Jobs();
    return jobs.ok() && !jobs->empty() && jobs->front().state == JobState::kRunning;
  }));
  stop.request_stop();
  EXPECT_EQ(Get(future).status().reason(), "CANCELLED");
  EXPECT_EQ(client_->Jobs()->size(), 1u);
}

TEST_F(LibraryHandle, OtherTextsThatBeginLikeOneAreRefused) {
  const std::string a = HandleOf("A");
  for (const std::string& text :
       {std::string("#"), std::string("#1"), std::string("#1@"), std::string("#x@1"),
        std::string("#0@1"), std::string("#-1@1"), std::string("#1@a\nb"), std::string("#1@\xff"),
        std::string("#1@a\0b", 6), a + "@", a + " ",
        "#18446744073709551616" + a.substr(a.find('@'))}) {
    WithEveryCall(text, [&](const std::string& call, const Status& status) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << call << ": " << status.ToString();
      EXPECT_THAT(status.message(), HasSubstr("is not the handle of a tensor")) << call;
    });
  }
  // A handle names no new tensor.
  EXPECT_EQ(client_->Put("#1@1", SpecA(), a_.data(), BytesIn(a_)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Create(a, SpecA()).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(client_->Run(Request()).ok());
  ExpectExact(*client_);
}

}  // namespace
}  // namespace agmm
