// Mapped tensors through the public library.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <future>
#include <stop_token>
#include <thread>
#include <utility>

#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

class LibraryMapping : public LibraryTest {
 protected:
  void SetUp() override {
    LibraryTest::SetUp();
    client_ = ConnectHere();
    ASSERT_NE(client_, nullptr);
    PutAB(*client_);
  }
  std::unique_ptr<Client> ConnectHere(bool session = false) const {
    return Connect(session, world_.socket(0));
  }
  static Mapping Map(Client& client, const std::string& name, bool writable) {
    Result<Mapping> mapping = client.Map(name, writable);
    EXPECT_TRUE(mapping.ok()) << mapping.status().ToString();
    return mapping.ok() ? *std::move(mapping) : Mapping();
  }
  // Copies the whole tensor, from its shards or to them.
  static void Copy(const Mapping& mapping, std::vector<float>* values, bool write) {
    const int64_t cols = mapping.tensor().spec.cols;
    values->resize(mapping.tensor().spec.rows * cols);
    for (const Mapping::Shard& shard : mapping.shards()) {
      const int64_t bytes = (shard.col_end - shard.col_begin) * 4;
      for (int64_t row = shard.row_begin; row < shard.row_end; ++row) {
        std::byte* const here = shard.data + (row - shard.row_begin) * shard.pitch_bytes;
        float* const there = values->data() + row * cols + shard.col_begin;
        if (write)
          std::memcpy(here, there, bytes);
        else
          std::memcpy(there, here, bytes);
      }
    }
  }
  static std::vector<float> Read(const Mapping& mapping) {
    std::vector<float> values;
    Copy(mapping, &values, /*write=*/false);
    return values;
  }
  static void Write(const Mapping& mapping, std::vector<float> values) {
    Copy(mapping, &values, /*write=*/true);
  }
  static std::vector<float> GetA(Client& client) {
    std::vector<float> a(kM * kK, -99);
    const auto got = client.Get("A", a.data(), BytesIn(a));
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    return a;
  }
  static bool AllNan(const Mapping& mapping) {
    const std::vector<float> values = Read(mapping);
    return !values.empty() &&
           std::all_of(values.begin(), values.end(), [](float value) { return value != value; });
  }

  const std::vector<float> old_ = Integers(kM * kK, 1), new_ = Integers(kM * kK, 5);
  std::unique_ptr<Client> client_;
};

TEST_F(LibraryMapping, WritesToAMappingTakeEffectWithItsCommit) {
  const auto before = client_->Find("A");
  ASSERT_TRUE(before.ok());
  Mapping mapping = Map(*client_, "A", /*writable=*/true);
  ASSERT_EQ(mapping.shards().size(), 2u);
  EXPECT_EQ(mapping.shards()[1].rank, 1);
  EXPECT_EQ(mapping.shards()[1].row_end, kM);
  EXPECT_GE(mapping.shards()[1].pitch_bytes, kK * 4);
  EXPECT_EQ(mapping.tensor().id, before->id);
  EXPECT_EQ(Read(mapping), old_);
  EXPECT_FALSE(mapping.detached());
  Write(mapping, new_);
  const auto committed = mapping.Commit();
  ASSERT_TRUE(committed.ok()) << committed.status().ToString();
  EXPECT_GT(committed->version, before->version);
  EXPECT_EQ(GetA(*client_), new_);
  // Later writes have no effect.
  EXPECT_TRUE(mapping.detached());
  EXPECT_TRUE(AllNan(mapping));
  Write(mapping, old_);
  EXPECT_EQ(GetA(*client_), new_);
  EXPECT_EQ(mapping.Commit().status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(LibraryMapping, AReadableMappingShowsTheContents) {
  Mapping mapping = Map(*client_, "A", /*writable=*/false);
  EXPECT_EQ(Read(mapping), GetA(*client_));
  ASSERT_FALSE(mapping.shards().empty());
  EXPECT_EQ(mprotect(mapping.shards()[0].data, 4096, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(mapping.Commit().status().code(), StatusCode::kFailedPrecondition);
  // A move transfers the mapping.
  Mapping moved = std::move(mapping);
  EXPECT_TRUE(mapping.detached());
  EXPECT_TRUE(mapping.shards().empty());
  EXPECT_EQ(mapping.Commit().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(moved.detached());
  EXPECT_EQ(Read(moved), old_);
  // Its end releases the lease for the next writer.
  moved = Mapping();
  EXPECT_TRUE(client_->Put("A", SpecA(), new_.data(), BytesIn(new_)).ok());
}

TEST_F(LibraryMapping, AJobSubmittedDuringAMappingSeesTheCommit) {
  Mapping mapping = Map(*client_, "A", /*writable=*/true);
  const JobHandle job = Submit(*client_, Request());
  EXPECT_EQ(job.Info()->state, JobState::kQueued);
  Write(mapping, new_);
  EXPECT_TRUE(mapping.Commit().ok());
  const auto done = job.Wait();
  ASSERT_TRUE(done.ok()) << done.status().ToString();
  std::vector<float> c(kM * kN, -99);
  ASSERT_TRUE(client_->Get("C", c.data(), BytesIn(c)).ok());
  EXPECT_EQ(c, Product(new_, Integers(kK * kN, 2)));
}

TEST_F(LibraryMapping, AMapOverTcpIsRefused) {
  const auto remote = Connect();
  for (const bool writable : {false, true}) {
    const Status status = remote->Map("A", writable).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("unix socket"));
  }
  EXPECT_EQ(GetA(*client_), old_);
  EXPECT_EQ(client_->Map("none", false).status().code(), StatusCode::kNotFound);
}

TEST_F(LibraryMapping, AMappingDroppedWithoutACommitLeavesNoContents) {
  { Mapping mapping = Map(*client_, "A", /*writable=*/true); }
  std::vector<float> a(kM * kK);
  EXPECT_EQ(client_->Get("A", a.data(), BytesIn(a)).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Map("A", false).status().code(), StatusCode::kFailedPrecondition);
  // A tensor without contents can be mapped for writing.
  Mapping mapping = Map(*client_, "A", /*writable=*/true);
  Write(mapping, new_);
  EXPECT_TRUE(mapping.Commit().ok());
  EXPECT_EQ(GetA(*client_), new_);
}

TEST_F(LibraryMapping, DetachEndsItAndKeepsTheMemory) {
  Mapping readable = Map(*client_, "B", /*writable=*/false);
  Mapping writable = Map(*client_, "A", /*writable=*/true);
  for (Mapping* mapping : {&readable, &writable}) {
    const std::byte* const data = mapping->shards()[0].data;
    mapping->Detach();
    EXPECT_TRUE(mapping->detached());
    ASSERT_EQ(mapping->shards().size(), 2u);
    EXPECT_EQ(mapping->shards()[0].data, data);
    EXPECT_TRUE(AllNan(*mapping));
    mapping->Detach();
  }
  Write(writable, new_);
  const Status status = writable.Commit().status();
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("the mapping was ended by its holder"));
  // Both leases have been released, and the tensor with the writable mapping has no contents.
  std::vector<float> a(kM * kK);
  EXPECT_EQ(client_->Get("A", a.data(), BytesIn(a)).status().code(),
            StatusCode::kFailedPrecondition);
  PutAB(*client_);
  EXPECT_EQ(GetA(*client_), old_);
  Mapping().Detach();
}

TEST_F(LibraryMapping, DetachOfManyThreadsIsOne) {
  Mapping mapping = Map(*client_, "A", /*writable=*/false);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      mapping.Detach();
      EXPECT_TRUE(mapping.detached());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(client_->Put("A", SpecA(), new_.data(), BytesIn(new_)).ok());
}

TEST_F(LibraryMapping, DetachDoesNotDisturbACommit) {
  for (int round = 0; round < 20; ++round) {
    Mapping mapping = Map(*client_, "A", /*writable=*/true);
    Write(mapping, new_);
    Result<TensorInfo> committed = Status();
    std::thread committer([&] { committed = mapping.Commit(); });
    mapping.Detach();
    committer.join();
    EXPECT_TRUE(mapping.detached());
    // The one that came first decides.
    EXPECT_EQ(client_->Find("A")->has_contents, committed.ok());
    EXPECT_TRUE(committed.ok() || committed.status().code() == StatusCode::kCancelled);
  }
}

TEST_F(LibraryMapping, DetachOutlivesTheClientAndTheDaemon) {
  Mapping mapping = Map(*client_, "A", true), other = Map(*client_, "B", false);
  world_.Kill(0);
  mapping.Detach();
  client_.reset();
  other.Detach();
  EXPECT_TRUE(mapping.detached());
  EXPECT_TRUE(AllNan(mapping));
}

TEST_F(LibraryMapping, AMapAndItsWaitersRespectTheirTimeouts) {
  Mapping mapping = Map(*client_, "A", /*writable=*/true);
  EXPECT_EQ(client_->Map("A", false, Milliseconds(50)).status().code(),
            StatusCode::kDeadlineExceeded);
  std::vector<float> a(kM * kK);
  EXPECT_EQ(
      client_->Get("A", a.data(), BytesIn(a), {.timeout = Milliseconds(50), .progress = nullptr})
          .status()
          .code(),
      StatusCode::kDeadlineExceeded);
  Write(mapping, new_);
  EXPECT_TRUE(mapping.Commit().ok());
  EXPECT_EQ(GetA(*client_), new_);
}

TEST_F(LibraryMapping, AMappingThatOutlivesItsClientIsDetached) {
  for (const bool session : {false, true}) {
    auto mine = ConnectHere(session);
    Mapping writable = Map(*mine, "A", true), readable = Map(*mine, "B", false);
    mine.reset();
    for (Mapping* mapping : {&writable, &readable}) {
      EXPECT_TRUE(mapping->detached());
      EXPECT_EQ(mapping->shards().size(), 2u);
      EXPECT_TRUE(AllNan(*mapping));
    }
    Write(writable, new_);
    const Status status = writable.Commit().status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("the client of the mapping of \"A\" was closed"));
    // Both leases have been released, and the tensor with the writable mapping has no contents.
    std::vector<float> a(kM * kK);
    EXPECT_EQ(client_->Get("A", a.data(), BytesIn(a)).status().code(),
              StatusCode::kFailedPrecondition);
    PutAB(*client_);
    EXPECT_EQ(GetA(*client_), old_);
  }
}

TEST_F(LibraryMapping, ACommitMayRaceWithTheEndOfItsClient) {
  for (int round = 0; round < 20; ++round) {
    auto mine = ConnectHere();
    Mapping mapping = Map(*mine, "A", true);
    std::thread committer([&] { (void)mapping.Commit(); });
    mine.reset();
    committer.join();
    EXPECT_TRUE(mapping.detached());
  }
}

TEST_F(LibraryMapping, AKilledDaemonDetachesIt) {
  Mapping mapping = Map(*client_, "A", true);
  world_.Kill(0);
  EXPECT_TRUE(Eventually([&] { return mapping.detached(); }));
  EXPECT_TRUE(AllNan(mapping));
  const auto committed = mapping.Commit();
  EXPECT_EQ(committed.status().code(), StatusCode::kUnavailable) << committed.status().ToString();
}

TEST_F(LibraryMapping, ALoopOfJobsRunsThroughTwoMappingsAtTheSameAddresses) {
  ASSERT_TRUE(client_->Run(Request()).ok());
  Mapping a = Map(*client_, "A", /*writable=*/true), c = Map(*client_, "C", /*writable=*/false);
  const std::byte* const a_data = a.shards()[0].data;
  const std::byte* const c_data = c.shards()[0].data;
  const std::vector<float> b = Integers(kK * kN, 2);
  uint64_t version = a.tensor().version;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    const std::vector<float> values = Integers(kM * kK, round);
    ASSERT_TRUE(c.Release().ok());
    EXPECT_TRUE(c.detached());
    EXPECT_TRUE(AllNan(c));
    Write(a, values);
    const auto committed = a.Commit();
    ASSERT_TRUE(committed.ok()) << committed.status().ToString();
    EXPECT_GT(std::exchange(version, committed->version), 0u);
    EXPECT_EQ(committed->version, version);
    EXPECT_TRUE(AllNan(a));
    const auto done = client_->Run(Request());
    ASSERT_TRUE(done.ok()) << done.status().ToString();
    const auto renewed = c.Renew();
    ASSERT_TRUE(renewed.ok()) << renewed.status().ToString();
    EXPECT_EQ(renewed->version, c.tensor().version);
    EXPECT_FALSE(c.detached());
    ASSERT_EQ(Read(c), Product(values, b));
    ASSERT_TRUE(a.Renew().ok());
    ASSERT_EQ(Read(a), values);
    ASSERT_EQ(a.shards()[0].data, a_data);
    ASSERT_EQ(c.shards()[0].data, c_data);
    // A write to detached memory is lost, and does not come back.
    ASSERT_TRUE(a.Commit().ok());
    Write(a, old_);
    ASSERT_TRUE(a.Renew().ok());
    ASSERT_EQ(Read(a), values);
  }
}

TEST_F(LibraryMapping, ARenewalShowsTheContentsOfOthers) {
  Mapping writable = Map(*client_, "A", true), readable = Map(*client_, "B", false);
  ASSERT_TRUE(writable.Commit().ok());
  ASSERT_TRUE(readable.Release().ok());
  ASSERT_TRUE(client_->Put("A", SpecA(), new_.data(), BytesIn(new_)).ok());
  const std::vector<float> b = Integers(kK * kN, 9);
  ASSERT_TRUE(client_->Put("B", SpecB(), b.data(), BytesIn(b)).ok());
  ASSERT_TRUE(writable.Renew().ok());
  ASSERT_TRUE(readable.Renew().ok());
  EXPECT_EQ(Read(writable), new_);
  EXPECT_EQ(Read(readable), b);
  // A second renewal has no effect.
  EXPECT_TRUE(writable.Renew().ok());
  EXPECT_EQ(Read(writable), new_);
}

TEST_F(LibraryMapping, AMappingThatIsGivenBackLeavesTheContents) {
  const uint64_t version = client_->Find("A")->version;
  for (const bool renewed : {false, true}) {
    Mapping mapping = Map(*client_, "A", true);
    if (renewed) {
      ASSERT_TRUE(mapping.Commit().ok());
      ASSERT_TRUE(mapping.Renew().ok());
    }
    mapping.GiveBack();
    EXPECT_TRUE(AllNan(mapping));
    EXPECT_EQ(mapping.Renew().status().code(), StatusCode::kCancelled);
    EXPECT_EQ(GetA(*client_), old_);
    EXPECT_EQ(client_->Find("A")->version, version + renewed);
  }
  ASSERT_TRUE(client_->Create("new", SpecA()).ok());
  Map(*client_, "new", true).GiveBack();
  EXPECT_FALSE(client_->Find("new")->has_contents);
  Map(*client_, "A", false).GiveBack();
  Mapping().GiveBack();
}

TEST_F(LibraryMapping, EachEndOfTheLeaseHasItsKindOfMapping) {
  Mapping writable = Map(*client_, "A", true), readable = Map(*client_, "B", false);
  EXPECT_EQ(writable.Release().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(readable.Commit().status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(writable.Commit().ok());
  ASSERT_TRUE(readable.Release().ok());
  EXPECT_THAT(writable.Commit().status().message(), HasSubstr("renew it first"));
  EXPECT_THAT(readable.Release().status().message(), HasSubstr("renew it first"));
  // None of these ended it.
  EXPECT_TRUE(writable.Renew().ok());
  EXPECT_TRUE(readable.Renew().ok());
  EXPECT_EQ(Mapping().Renew().status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(LibraryMapping, AnUncommittedRenewalLeavesNoContents) {
  Mapping mapping = Map(*client_, "A", true);
  ASSERT_TRUE(mapping.Commit().ok());
  mapping = Mapping();
  EXPECT_EQ(GetA(*client_), old_);
  mapping = Map(*client_, "A", true);
  ASSERT_TRUE(mapping.Commit().ok());
  ASSERT_TRUE(mapping.Renew().ok());
  mapping = Mapping();
  EXPECT_FALSE(client_->Find("A")->has_contents);
}

TEST_F(LibraryMapping, ADeletedTensorEndsItAndReturnsItsMemory) {
  const auto free = [&] { return client_->World()->devices[0].free_bytes; };
  Mapping idle = Map(*client_, "A", true), waiting = Map(*client_, "B", false);
  ASSERT_TRUE(idle.Commit().ok());
  ASSERT_TRUE(waiting.Release().ok());
  const int64_t before = free();
  // The holder does nothing for this.
  ASSERT_TRUE(client_->Delete("A").ok());
  EXPECT_TRUE(Eventually([&] { return free() > before; }));
  const Status status = idle.Renew().status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("\"A\" was deleted"));
  EXPECT_TRUE(AllNan(idle));
  // Another tensor with the name is not the mapped one.
  ASSERT_TRUE(client_->Delete("B").ok());
  PutAB(*client_);
  EXPECT_EQ(waiting.Renew().status().code(), StatusCode::kNotFound);
}

TEST_F(LibraryMapping, ATensorThatIsDeletedWhileItIsUsedEndsItAtTheCommit) {
  Mapping mapping = Map(*client_, "A", true);
  ASSERT_TRUE(client_->Delete("A").ok());
  Write(mapping, new_);
  EXPECT_EQ(Read(mapping), new_);
  EXPECT_EQ(mapping.Commit().status().code(), StatusCode::kNotFound);
  EXPECT_EQ(mapping.Renew().status().code(), StatusCode::kNotFound);
}

TEST_F(LibraryMapping, ARenewalWaitsForItsTurnUntilItsTimeout) {
  Mapping mapping = Map(*client_, "A", true);
  ASSERT_TRUE(mapping.Commit().ok());
  const JobHandle job = Submit(*client_, LongRequest());
  ASSERT_TRUE(Eventually([&] { return job.Info()->state == JobState::kRunning; }));
  const Status status = mapping.Renew(kWhile).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("\"A\" was in use"));
  EXPECT_FALSE(mapping.Renew().ok());
  ASSERT_TRUE(job.Cancel().ok());
  EXPECT_EQ(GetA(*client_), old_);
}

TEST_F(LibraryMapping, AStopEndsAMapThatWaitsAndKeepsTheContents) {
  const JobHandle job = Submit(*client_, LongRequest());
  std::stop_source stop;
  auto map = std::async(std::launch::async, [&] {
    return client_->Map("A", /*writable=*/true, /*timeout=*/{}, stop.get_token()).status();
  });
  EXPECT_EQ(map.wait_for(kWhile), std::future_status::timeout);
  stop.request_stop();
  EXPECT_EQ(map.get().ToString(), "CANCELLED: stopped at the caller's request");
  EXPECT_TRUE(job.Cancel().ok());
  EXPECT_EQ(GetA(*client_), old_);
  const Status late = client_->Map("A", true, /*timeout=*/{}, stop.get_token()).status();
  EXPECT_EQ(late.code(), StatusCode::kCancelled) << late.ToString();
  EXPECT_EQ(GetA(*client_), old_);
}

TEST_F(LibraryMapping, SignalsDoNotDisturbIt) {
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  std::atomic<bool> ended = false;
  std::thread sender([&, mapper = pthread_self()] {
    while (!ended) {
      pthread_kill(mapper, SIGUSR1);
      // Some of these signals come during the waits of a map, and none keep it from running.
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  });
  for (int round = 0; round < 100; ++round) {
    const auto mapping = client_->Map("A", /*writable=*/false);
    EXPECT_TRUE(mapping.ok()) << mapping.status().ToString();
  }
  ended = true;
  sender.join();
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(LibraryMapping, TooFewFilesAreNamedAndTheContentsStay) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {512, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<int> files;
  for (int fd = 0; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) files.push_back(fd);
  ASSERT_FALSE(files.empty());
  close(files.back());  // for the connection
  const Status status = client_->Map("A", /*writable=*/true).status();
  files.pop_back();
  for (int fd : files) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("this process may open 512 files"));
  EXPECT_EQ(GetA(*client_), old_);
  EXPECT_EQ(Read(Map(*client_, "A", true)), old_);
}

TEST_F(LibraryMapping, DetachEndsARenewal) {
  Mapping mapping = Map(*client_, "A", true);
  ASSERT_TRUE(mapping.Commit().ok());
  const JobHandle job = Submit(*client_, LongRequest());
  ASSERT_TRUE(Eventually([&] { return job.Info()->state == JobState::kRunning; }));
  auto renewal = std::async(std::launch::async, [&] { return mapping.Renew().status(); });
  EXPECT_EQ(renewal.wait_for(kWhile), std::future_status::timeout);
  mapping.Detach();
  const Status renewed = renewal.get();
  EXPECT_EQ(renewed.code(), StatusCode::kCancelled) << renewed.ToString();
  EXPECT_TRUE(AllNan(mapping));
  ASSERT_TRUE(job.Cancel().ok());
  EXPECT_EQ(GetA(*client_), old_);
}

TEST_F(LibraryMapping, RenewalsMayRaceWithDetach) {
  for (int round = 0; round < 50; ++round) {
    Mapping mapping = Map(*client_, "A", true);
    Write(mapping, new_);
    std::atomic<int> renewals = 0;
    std::thread user([&] {
      while (mapping.Commit().ok() && mapping.Renew().ok()) ++renewals;
    });
    EXPECT_TRUE(Eventually([&] { return renewals >= round % 4; }));
    mapping.Detach();
    user.join();
    EXPECT_TRUE(mapping.detached());
    EXPECT_TRUE(AllNan(mapping));
    if (!client_->Find("A")->has_contents) PutAB(*client_);
  }
}

TEST_F(LibraryMapping, AKilledDaemonEndsItBetweenACommitAndTheRenewal) {
  Mapping mapping = Map(*client_, "A", true);
  ASSERT_TRUE(mapping.Commit().ok());
  world_.Kill(0);
  const Status status = mapping.Renew().status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_TRUE(AllNan(mapping));
}

TEST_F(LibraryMapping, ItEndsWithItsClientBetweenACommitAndTheRenewal) {
  for (const bool session : {false, true}) {
    auto mine = ConnectHere(session);
    Mapping mapping = Map(*mine, "A", true);
    ASSERT_TRUE(mapping.Commit().ok());
    mine.reset();
    EXPECT_THAT(mapping.Renew().status().message(), HasSubstr("was closed"));
    EXPECT_TRUE(AllNan(mapping));
    EXPECT_EQ(GetA(*client_), old_);
  }
}

TEST_F(LibraryMapping, ManyMappingsOfOneTensorTakeTurns) {
  constexpr int kThreads = 4, kRounds = 50;
  std::vector<std::thread> threads;
  const std::vector<float> zeros(kM * kK);
  ASSERT_TRUE(client_->Put("A", SpecA(), zeros.data(), BytesIn(zeros)).ok());
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      Mapping mapping = Map(*client_, "A", true);
      for (int round = 0; round < kRounds; ++round) {
        ASSERT_TRUE(mapping.Renew().ok());
        std::vector<float> values = Read(mapping);
        for (float& value : values) ++value;
        Write(mapping, values);
        ASSERT_TRUE(mapping.Commit().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(GetA(*client_), std::vector<float>(kM * kK, kThreads * kRounds));
}

}  // namespace
}  // namespace agmm
