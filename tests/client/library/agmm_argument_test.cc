// Invalid arguments: one line names the argument, and the client keeps working.
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LibraryArgument : public LibraryJobTest {
 protected:
  static void ExpectRefused(const Status& status, const std::string& words) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(words));
    EXPECT_THAT(status.message(), Not(HasSubstr("\n")));
  }
  // Afterwards, A, B and the client are as they were.
  void TearDown() override {
    const Outcome done = client_->Run(Request());
    EXPECT_TRUE(done.ok()) << done.status().ToString();
    ExpectExact(*client_);
  }

  const std::vector<float> a_ = Integers(kM * kK, 1);
};

TEST_F(LibraryArgument, TheEndpointOfAClientServesAnotherOne) {
  const auto other = Connect(/*session=*/false, client_->endpoint());
  EXPECT_EQ(other->endpoint(), client_->endpoint());
  other->Close();
  EXPECT_EQ(other->endpoint(), client_->endpoint());
}

TEST_F(LibraryArgument, NullDataIsRefused) {
  ExpectRefused(client_->Put("A", SpecA(), nullptr, BytesIn(a_)).status(),
                "data is null; give the address of 6000 bytes");
  ExpectRefused(client_->Get("A", nullptr, BytesIn(a_)).status(),
                "data is null; give the address of 6000 bytes");
  ExpectRefused(client_->Put("A", SpecA(), nullptr, 0).status(), "0 bytes are given");
  ExpectRefused(client_->Get("A", nullptr, 0).status(), "data is null");
}

TEST_F(LibraryArgument, AnEmptyReaderOrWriterIsRefused) {
  ExpectRefused(client_->Put("A", SpecA(), Reader()).status(), "reader is empty; give a function");
  ExpectRefused(client_->Get("A", Writer()).status(), "writer is empty; give a function");
}

TEST_F(LibraryArgument, AnEmptyCallbackIsNotCalled) {
  const JobHandle job = Submit(*client_, Request());
  job.Then(nullptr);
  job.Watch(nullptr, nullptr);
  std::atomic<int> events = 0;
  job.Watch([&](const JobEvent&) { return ++events > 0; }, nullptr);
  client_->Run(Request(), nullptr);
  JobHandle().Then(nullptr);
  EXPECT_TRUE(Eventually([&] { return events == 3; }));
  EXPECT_TRUE(Eventually([&] { return client_->Jobs()->size() == 2; }));
  client_.reset();
  client_ = Connect();
}

TEST_F(LibraryArgument, TextsAreUtf8) {
  const std::string no_text = "a\xff";
  const std::string name = "the name of a tensor is not UTF-8 from byte 1 on";
  std::vector<float> a(a_.size());
  TensorSpec spec = SpecA();
  ExpectRefused(client_->Put(no_text, spec, a.data(), BytesIn(a)).status(), name);
  ExpectRefused(client_->Fill(no_text, spec, {}).status(), name);
  ExpectRefused(client_->Create(no_text, spec).status(), name);
  ExpectRefused(client_->Get(no_text, a.data(), BytesIn(a)).status(), name);
  ExpectRefused(client_->Map(no_text, /*writable=*/false).status(), name);
  ExpectRefused(client_->Find(no_text).status(), name);
  ExpectRefused(client_->Delete(no_text), name);
  spec.sharding = no_text;
  ExpectRefused(client_->Create("D", spec).status(), "sharding is not UTF-8 from byte 1 on");
  for (const auto& [member, words] : {std::pair{&JobRequest::spec, "spec is not"},
                                      {&JobRequest::algorithm, "algorithm is not"}}) {
    JobRequest request = Request();
    request.*member = no_text;
    ExpectRefused(client_->Submit(request).status(), words);
    ExpectRefused(client_->Run(request).status(), words);
  }
}

TEST_F(LibraryArgument, ValuesOutsideTheirEnumAreRefused) {
  TensorSpec spec = SpecA();
  spec.type = static_cast<ElementType>(7);
  const std::string words = "TensorSpec::type is 7; use kF32, kBF16 or kF16";
  ExpectRefused(client_->Put("A", spec, a_.data(), BytesIn(a_) / 2).status(), words);
  ExpectRefused(client_->Create("D", spec).status(), words);
  ExpectRefused(client_->Fill("A", SpecA(), {.kind = static_cast<Filling::Kind>(9)}).status(),
                "Filling::kind is 9; use kUniform, kIntegers or kConstant");
}

TEST_F(LibraryArgument, NumbersOutsideTheirRangeAreRefused) {
  ExpectRefused(client_->Jobs(-1).status(), "limit is -1");
  EXPECT_TRUE(client_->Jobs(0)->empty());
  ExpectRefused(client_->FindJob(0).status(), "the id of the job is 0");
  TensorSpec spec = SpecA();
  spec.ranks = {-1};
  ExpectRefused(client_->Create("D", spec).status(), "name rank -1");
  spec = {.rows = int64_t{1} << 62, .cols = int64_t{1} << 62, .sharding = "[M, N]"};
  ExpectRefused(client_->Create("D", spec).status(), "the number of rows is 4611686018427387904");
  ExpectRefused(client_->Put("D", spec, a_.data(), BytesIn(a_)).status(), "4611686018427387904");
  for (const auto& [member, words] :
       {std::pair{&JobRequest::chunk_count, "the number of chunks a shard is -1"},
        {&JobRequest::repeat_count, "the number of repeats is -1"}}) {
    JobRequest request = Request();
    request.*member = -1;
    ExpectRefused(client_->Submit(request).status(), words);
    ExpectRefused(client_->Run(request).status(), words);
  }
  JobRequest request = Request();
  request.timeout = Milliseconds::max();
  ExpectRefused(client_->Submit(request).status(), "the timeout of the job is");
}

TEST_F(LibraryArgument, ANegativeTimeoutHasExpired) {
  for (const Milliseconds timeout : {Milliseconds(-1000), Milliseconds::min()})
    EXPECT_EQ(client_->List(timeout).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(client_->List(Milliseconds::max()).ok());
}

TEST_F(LibraryArgument, OptionsOfAClientAreChecked) {
  const std::string endpoint = world_.endpoint(0);
  ExpectRefused(Client::Connect({.endpoint = endpoint, .call_timeout = Milliseconds(0)}).status(),
                "call_timeout is 0 ms; give more than 0 ms");
  ExpectRefused(
      Client::Connect({.endpoint = endpoint, .transfer_timeout = Milliseconds(-1)}).status(),
      "transfer_timeout is -1 ms; give more than 0 ms");
  ExpectRefused(Client::Connect({.endpoint = std::string("/a\0/b", 5)}).status(),
                "\"/a\\x00/b\" is not an endpoint");
  ExpectRefused(Client::Connect({.endpoint = "::1:7101"}).status(),
                "has an IPv6 address without brackets; write [::1]:7101, or unix:/path");
  ExpectRefused(Client::Connect({.endpoint = "127.1:7101"}).status(),
                "is not a whole IPv4 address");
  ExpectRefused(Client::Connect({.endpoint = "a\nb:1"}).status(), "\"a\\nb:1\" is not an endpoint");
}

}  // namespace
}  // namespace agmm
