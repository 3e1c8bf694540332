// A client and its objects in a forked child: every call in the child is refused, and the parent's
// connection, session and mappings keep working.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

class LibraryFork : public LibraryJobTest {
 protected:
  // Uses a session, so that a broken connection shows: A and B would end with it.
  void SetUp() override {
    LibraryTest::SetUp();
    client_ = Connect(/*session=*/true, world_.socket(0));
    ASSERT_NE(client_, nullptr);
    PutAB(*client_);
    ASSERT_NO_FATAL_FAILURE(ExpectWhole());
  }
  // Runs `body` in a forked child. Returns the text that `body` returned, or how the child ended.
  static std::string InChild(const std::function<std::string()>& body) {
    int ends[2];
    if (pipe(ends) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);  // a call must not hang
      const std::string said = body();
      const bool wrote = write(ends[1], said.data(), said.size()) >= 0;
      _exit(wrote ? 0 : 1);
    }
    close(ends[1]);
    std::string said;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;)
      said.append(buffer, got);
    close(ends[0]);
    int status = -1;
    waitpid(child, &status, 0);
    if (status != 0) said += "; the child ended with wait status " + std::to_string(status);
    return said;
  }
  // The client's calls of every kind still work, and its session's tensors are there.
  void ExpectWhole() {
    const auto put = client_->Put("A", SpecA(), old_.data(), BytesIn(old_));
    ASSERT_TRUE(put.ok()) << put.status().ToString();
    EXPECT_TRUE(put->of_session);
    const Outcome waited = Submit(*client_, Request()).Wait();
    ASSERT_TRUE(waited.ok()) << waited.status().ToString();
    std::future<Outcome> done = Submit(*client_, Request()).Done();
    EXPECT_TRUE(Get(done).ok());
    const Outcome ran = client_->Run(Request());
    ASSERT_TRUE(ran.ok()) << ran.status().ToString();
    ExpectExact(*client_);
  }

  const std::vector<float> old_ = Integers(kM * kK, 1);
};

TEST_F(LibraryFork, EveryCallInAChildIsRefused) {
  const JobHandle job = Submit(*client_, Request());
  Mapping mapping = *client_->Map("B", /*writable=*/true);
  const std::string said = InChild([&] {
    std::string wrong;
    int refused = 0;
    const auto expect = [&](const char* call, const Status& status) {
      ++refused;
      if (status.code() != StatusCode::kFailedPrecondition ||
          status.message().find("was forked from process " + std::to_string(getppid())) ==
              std::string::npos) {
        wrong += std::string(call) + ": " + status.ToString() + "; ";
      }
    };
    const auto expect_in_callback = [&](const char* call) {
      return [&, call](const Outcome& outcome) { expect(call, outcome.status()); };
    };
    std::vector<float> a = old_;
    const auto reader = [](int64_t, std::byte*, int64_t) { return Status(); };
    const auto writer = [](int64_t, const std::byte*, int64_t) { return Status(); };
    expect("Connect", Client::Connect({.endpoint = world_.endpoint(0)}).status());
    expect("World", client_->World().status());
    expect("Put", client_->Put("A", SpecA(), a.data(), BytesIn(a)).status());
    expect("Put with a reader", client_->Put("A", SpecA(), reader).status());
    expect("Fill", client_->Fill("A", SpecA(), {}).status());
    expect("Create", client_->Create("D", SpecA()).status());
    expect("Get", client_->Get("A", a.data(), BytesIn(a)).status());
    expect("Get with a writer", client_->Get("A", writer).status());
    expect("PutAsync", client_->PutAsync("A", SpecA(), a.data(), BytesIn(a)).get().status());
    expect("GetAsync", client_->GetAsync("A", a.data(), BytesIn(a)).get().status());
    expect("Map", client_->Map("A", false).status());
    expect("List", client_->List().status());
    expect("Find", client_->Find("A").status());
    expect("Delete", client_->Delete("A"));
    expect("Submit", client_->Submit(Request()).status());
    client_->Run(Request(), expect_in_callback("Run with a callback"));
    expect("Run", client_->Run(Request()).status());
    expect("FindJob", client_->FindJob(job.id()).status());
    expect("Jobs", client_->Jobs().status());
    expect("Wait", job.Wait().status());
    job.Then(expect_in_callback("Then"));
    expect("Done", job.Done().get().status());
    job.Watch([](const JobEvent&) { return true; }, expect_in_callback("Watch"));
    expect("Info", job.Info().status());
    expect("Trace", job.Trace().status());
    expect("Cancel", job.Cancel());
    expect("Commit", mapping.Commit().status());
    mapping.Detach();  // the parent's goes on
    if (!mapping.detached() || !mapping.shards().empty()) wrong += "the mapping has memory; ";
    return wrong + std::to_string(refused) + " refused";
  });
  EXPECT_EQ(said, "27 refused");
  EXPECT_FALSE(mapping.detached());
  EXPECT_TRUE(mapping.Commit().ok());
  ExpectWhole();
}

TEST_F(LibraryFork, AChildThatDestroysItsObjectsDoesNotAffectTheParent) {
  Mapping writable = *client_->Map("A", true), readable = *client_->Map("B", false);
  std::optional<JobHandle> job = Submit(*client_, LongRequest());
  std::future<Outcome> done = job->Done();
  EXPECT_EQ(InChild([&] {
              readable = Mapping();
              { const Mapping moved = std::move(writable); }
              job.reset();
              client_.reset();
              return std::string("destroyed");
            }),
            "destroyed");
  EXPECT_FALSE(readable.detached());
  EXPECT_FALSE(writable.detached());
  EXPECT_TRUE(writable.Commit().ok());
  readable = Mapping();
  EXPECT_TRUE(job->Cancel().ok());
  EXPECT_EQ(Get(done).status().reason(), "CANCELLED");
  ExpectWhole();
}

TEST_F(LibraryFork, CallsInProgressInTheParentContinue) {
  const JobHandle job = Submit(*client_, LongRequest());
  std::vector<std::future<Outcome>> waits;
  for (int i = 0; i < 4; ++i)
    waits.push_back(std::async(std::launch::async, [&] { return job.Wait(); }));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(InChild([&] {
                const std::string said = job.Info().status().message();
                client_.reset();
                return said.find("forked") != std::string::npos ? "refused" : said;
              }),
              "refused");
  }
  EXPECT_TRUE(job.Cancel().ok());
  for (std::future<Outcome>& wait : waits) EXPECT_EQ(Get(wait).status().reason(), "CANCELLED");
  ExpectWhole();
}

}  // namespace
}  // namespace agmm
