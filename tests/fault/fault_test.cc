// Daemons and clients that die or are stopped: which clients learn of it, what continues, and what
// recovers.
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "tests/e2e/usage.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"
#include "tests/support/seed.h"

namespace agmm {
namespace {

using ::testing::AnyOfArray;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Time within which a client must learn that a daemon has died.
constexpr absl::Duration kTold = absl::Seconds(5);

class Fault : public ::testing::Test {
 protected:
  explicit Fault(int nodes = 2)
      : world_({.nodes = nodes, .devices = 2, .failpoints = "executor.delay=*"}) {}
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
    WriteNpy(world_.Path("A.npy"), a_);
    WriteNpy(world_.Path("B.npy"), b_);
  }

  std::vector<std::string> Arguments(const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> arguments = {"matmul", world_.Path("A.npy"), world_.Path("B.npy"),
                                          "--out", world_.Path("C.npy")};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  }
  // agmmctl with a job that takes minutes; returns once its epochs run on every node.
  std::unique_ptr<Process> StartLongJob(int node) {
    std::vector<double> before;
    for (int other = 0; other < 2; ++other) before.push_back(Launches(other));
    std::unique_ptr<Process> client =
        world_.StartCtl(node, Arguments({"--repeat", "1000000", "--timeout", "10m"}));
    for (int other = 0; other < nodes(); ++other) {
      EXPECT_TRUE(world_.WaitFor(other, "a launch", [&](const v1::GetStatusResponse& status) {
        return MetricOf(status, "runner_launches_total") > before[other];
      })) << client->err();
    }
    EXPECT_TRUE(client->Running()) << client->err();
    return client;
  }
  virtual int nodes() const { return 2; }
  double Launches(int node) {
    return node < nodes() ? MetricOf(world_.Status(node), "runner_launches_total") : 0;
  }

  bool OutputExists() const {
    for (const auto& entry : std::filesystem::directory_iterator(world_.Path("")))
      if (entry.path().filename().string().find("C.npy") != std::string::npos) return true;
    return false;
  }
  void ExpectNextJobExact(int node) {
    const Ran ran = world_.Ctl(node, Arguments());
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    if (ran.exit_code != 0) return;
    EXPECT_TRUE(SameBits(ReadNpy(world_.Path("C.npy")), want_));
    std::filesystem::remove(world_.Path("C.npy"));
  }
  // During a job of a client of `asked`, kills `killed`, which then comes back.
  void KillInMidJob(int asked, int killed, int code, const std::string& what) {
    const std::unique_ptr<Process> client = StartLongJob(asked);
    const uint64_t generation = world_.Status(1 - killed).generation();
    world_.Kill(killed);
    EXPECT_EQ(client->Wait(kTold), code) << client->err();
    EXPECT_THAT(client->err(), StartsWith("agmmctl: "));
    EXPECT_THAT(client->err(), HasSubstr(what));
    EXPECT_EQ(client->out(), "");
    EXPECT_FALSE(OutputExists());
    EXPECT_TRUE(world_.daemon(1 - killed).Running());
    world_.Start(killed);
    for (int node : {0, 1}) {
      ASSERT_TRUE(world_.WaitReady(node));
      EXPECT_GT(world_.Status(node).generation(), generation);
    }
    for (int node : {0, 1}) ExpectNextJobExact(node);
  }

  const TestMatrix a_ = SmallIntegers(130, 67, 1), b_ = SmallIntegers(67, 90, 2),
                   want_ = MatrixProduct(a_, b_);
  World world_;
};

TEST_F(Fault, AKilledMemberEndsTheJobByNameAndRejoins) { KillInMidJob(0, 1, 7, "n1"); }
TEST_F(Fault, AKilledSequencerEndsTheJobByNameAndComesBack) { KillInMidJob(1, 0, 7, "n0"); }
TEST_F(Fault, AnErrorAfterTheSequencersDeathNamesItsEndpoint) {
  KillInMidJob(0, 0, 3, world_.endpoint(0));
}
TEST_F(Fault, AnErrorAfterAMembersDeathNamesItsEndpoint) {
  KillInMidJob(1, 1, 3, world_.endpoint(1));
}

TEST_F(Fault, CtrlCCancelsTheJobAndLeavesNothing) {
  for (int asked : {0, 1}) {
    const std::unique_ptr<Process> client = StartLongJob(asked);
    client->Signal(asked == 0 ? SIGINT : SIGTERM);
    EXPECT_EQ(client->Wait(kPatience), 130);
    EXPECT_EQ(client->err(), "agmmctl: cancelled\n");
    EXPECT_EQ(client->out(), "");
    EXPECT_FALSE(OutputExists());
    EXPECT_TRUE(world_.WaitFor(
        0, "a cancelled job and no tensors", [&](const v1::GetStatusResponse& status) {
          return MetricOf(status, "jobs_cancelled_total") == asked + 1 && TensorBytes(status) == 0;
        }));
    ExpectNextJobExact(asked);
  }
}

TEST_F(Fault, AKilledClientsJobAndTensorsEnd) {
  for (int asked : {0, 1}) {
    const uint64_t generation = world_.Status(0).generation();
    const std::unique_ptr<Process> client = StartLongJob(asked);
    EXPECT_GT(TensorBytes(world_.Status(0)), 0);
    client->Signal(SIGKILL);
    EXPECT_EQ(client->Wait(kPatience), 128 + SIGKILL);
    EXPECT_TRUE(world_.WaitFor(
        0, "a cancelled job and no tensors", [&](const v1::GetStatusResponse& status) {
          return MetricOf(status, "jobs_cancelled_total") == asked + 1 && TensorBytes(status) == 0;
        }));
    EXPECT_EQ(world_.Status(0).generation(), generation);
    ExpectNextJobExact(1 - asked);
  }
}

TEST_F(Fault, ADeadlineEndsTheJobAndNotTheWorld) {
  const Ran ran = world_.Ctl(1, Arguments({"--repeat", "1000000", "--timeout", "5s"}));
  EXPECT_EQ(ran.exit_code, 6) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("did not end within its timeout of 5s: "));
  EXPECT_FALSE(OutputExists());
  ExpectNextJobExact(0);
}

// A cancelled sum and one whose deadline passes leave C without contents and nothing held; a lost
// node ends one with its name.
TEST_F(Fault, ASumThatIsCutShortLeavesCWithoutContents) {
  const auto put = [&](const char* name, const char* file, const char* sharding) {
    const Ran ran =
        world_.Ctl(0, {"tensor", "put", name, world_.Path(file), "--sharding", sharding});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
  };
  ASSERT_NO_FATAL_FAILURE(put("X", "A.npy", "[M, K_x]"));
  ASSERT_NO_FATAL_FAILURE(put("W", "B.npy", "[K_x, N]"));
  const auto sum = [](std::vector<std::string> flags) {
    std::vector<std::string> arguments = {
        "job",     "submit", "--spec", "A[M, K_x] * B[K_x, N] -> C[M, N]", "--bind", "A=X,B=W,C=Y",
        "--split", "K=x",    "--wait"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  };
  const auto expect_y = [&](const char* state) {
    const Ran ran = world_.Ctl(1, {"tensor", "show", "Y"});
    EXPECT_THAT(ran.out, HasSubstr(state)) << ran.err;
  };
  // Submits a sum that takes minutes; returns its number once its epochs run.
  const auto start = [&] {
    const double before = Launches(1);
    std::vector<std::string> arguments = sum({"--repeat", "1000000", "--timeout", "10m"});
    std::erase(arguments, "--wait");
    const Ran ran = world_.Ctl(0, arguments);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_TRUE(world_.WaitFor(1, "a launch", [&](const v1::GetStatusResponse& status) {
      return MetricOf(status, "runner_launches_total") > before;
    }));
    return std::string(absl::StripAsciiWhitespace(absl::StripPrefix(ran.out, "job ")));
  };
  std::string job = start();
  EXPECT_EQ(world_.Ctl(1, {"job", "cancel", job}).exit_code, 0);
  EXPECT_EQ(world_.Ctl(1, {"job", "watch", job}).exit_code, 130);
  expect_y("empty");
  EXPECT_EQ(world_.Ctl(0, sum({"--repeat", "1000000", "--timeout", "600ms"})).exit_code, 6);
  expect_y("empty");
  const Ran whole = world_.Ctl(1, sum({}));
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  expect_y("ready");
  ASSERT_EQ(world_.Ctl(0, {"tensor", "get", "Y", world_.Path("Y.npy")}).exit_code, 0);
  EXPECT_TRUE(SameBits(ReadNpy(world_.Path("Y.npy")), want_));
  EXPECT_EQ(world_.Ctl(0, {"tensor", "rm", "X", "W", "Y"}).exit_code, 0);
  EXPECT_TRUE(world_.WaitFor(0, "no tensors", [](const v1::GetStatusResponse& status) {
    return TensorBytes(status) == 0;
  }));
  ASSERT_NO_FATAL_FAILURE(put("X", "A.npy", "[M, K_x]"));
  ASSERT_NO_FATAL_FAILURE(put("W", "B.npy", "[K_x, N]"));
  job = start();
  const std::unique_ptr<Process> watch = world_.StartCtl(0, {"job", "watch", job});
  world_.Kill(1);
  EXPECT_EQ(watch->Wait(kTold), 7) << watch->err();
  EXPECT_THAT(watch->err(), HasSubstr("n1"));
  world_.Start(1);
  for (int node : {0, 1}) ASSERT_TRUE(world_.WaitReady(node));
  ExpectNextJobExact(0);
}

// The first kill comes while a job is certain to run, and the second after a job's end. Each later
// one halves the time between the latest kill that was an error and the earliest that came too
// late.
TEST_F(Fault, KillsAtAnyMomentAreErrorsAndNeverWrongResults) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  std::mt19937_64 random(seed);
  absl::Duration early = absl::ZeroDuration(), late;
  for (int round = 0; round < 6; ++round) {
    const int asked = random() % 2, killed = random() % 2;
    const absl::Time begin = absl::Now();
    const std::unique_ptr<Process> client =
        round == 0 ? StartLongJob(asked) : world_.StartCtl(asked, Arguments({"--repeat", "20"}));
    std::optional<int> code;
    if (round == 1) code = client->Wait(kPatience);
    if (round > 1) absl::SleepFor((early + late) / 2);
    const absl::Duration moment = absl::Now() - begin;
    world_.Kill(killed);
    if (round != 1) code = client->Wait(kPatience);
    const std::vector<int> possible = round == 0   ? std::vector{3, 7}
                                      : round == 1 ? std::vector{0}
                                                   : std::vector{0, 3, 7};
    EXPECT_THAT(code, AnyOfArray(possible)) << client->err();
    EXPECT_EQ(OutputExists(), code == 0);
    if (code == 0) {
      EXPECT_TRUE(SameBits(ReadNpy(world_.Path("C.npy")), want_));
    }
    if (round > 0) (code == 0 ? late : early) = moment;
    std::filesystem::remove(world_.Path("C.npy"));
    EXPECT_TRUE(world_.daemon(1 - killed).Running());
    world_.Start(killed);
    ASSERT_TRUE(world_.WaitReady(asked));
    ExpectNextJobExact(asked);
  }
}

// Both daemons are asked to stop during a job, as by systemd.
TEST_F(Fault, DaemonsStopCleanlyDuringAJob) {
  for (int stopped : {1, 0}) {
    const std::unique_ptr<Process> client = StartLongJob(1 - stopped);
    world_.daemon(stopped).Signal(SIGTERM);
    EXPECT_EQ(world_.daemon(stopped).Wait(kPatience), 0);
    EXPECT_EQ(client->Wait(kPatience), 7) << client->err();
    world_.Start(stopped);
    ASSERT_TRUE(world_.WaitReady(1 - stopped));
  }
}

// One client holds a tensor open for writing, and another waits for it, through `asked`, while
// `stopped` stops.
TEST_F(Fault, DaemonsStopCleanlyWhileClientsWaitForATensor) {
  for (int stopped : {1, 0}) {
    for (int asked : {1, 0}) {
      const std::unique_ptr<Connection> connection = world_.Connect(asked);
      v1::CreateTensorRequest create;
      create.mutable_spec()->set_rows(8);
      create.mutable_spec()->set_cols(8);
      create.mutable_spec()->set_dtype(v1::DTYPE_F32);
      create.mutable_spec()->set_sharding("[M_x, K]");
      v1::MeshAxis* axis = create.mutable_spec()->mutable_mesh()->add_axes();
      axis->set_name("x");
      axis->set_size(4);
      const auto session = connection->OpenSession();
      ASSERT_TRUE(session.ok()) << session.status();
      create.set_session_id(*session);
      const auto tensor = connection->CreateTensor(create);
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      v1::UploadRequest request;
      request.mutable_begin()->set_tensor_id(tensor->tensor_id());
      Connection::Call first(connection.get(), Deadline::After(kPatience)),
          second(connection.get(), Deadline::After(kPatience));
      v1::UploadResponse response;
      request.mutable_begin()->set_upload_id("holder");
      ASSERT_TRUE(connection->contents()->Upload(first.context(), request, &response).ok());
      v1::UploadRequest waiting = request;
      waiting.mutable_begin()->set_upload_id("waiter");
      v1::UploadResponse unused;
      std::promise<grpc::Status> waited;
      connection->contents()->async()->Upload(
          second.context(), &waiting, &unused,
          [&](grpc::Status status) { waited.set_value(std::move(status)); });
      world_.daemon(stopped).Signal(SIGTERM);
      EXPECT_EQ(world_.daemon(stopped).Wait(kPatience), 0)
          << "asked " << asked << ", stopped " << stopped;
      EXPECT_FALSE(waited.get_future().get().ok());
      // The tensor ended with its world: writes to it now have no effect.
      request.mutable_chunk()->set_data(std::string(8 * 8 * 4, '\0'));
      Connection::Call third(connection.get(), Deadline::After(kPatience));
      EXPECT_FALSE(connection->contents()->Upload(third.context(), request, &response).ok());
      world_.Start(stopped);
      ASSERT_TRUE(world_.WaitReady(0));
      ASSERT_TRUE(world_.WaitReady(1));
    }
  }
}

class FaultAlone : public Fault {
 protected:
  FaultAlone() : Fault(1) {}
  int nodes() const override { return 1; }
};

TEST_F(FaultAlone, ASecondCtrlCEndsAgmmctlAtOnce) {
  const std::unique_ptr<Process> client = StartLongJob(0);
  // The daemon does not answer: the first Ctrl-C waits for it to cancel the job.
  world_.daemon(0).Stop();
  client->Signal(SIGINT);
  // A second signal of the same kind is lost while the first is pending.
  EXPECT_TRUE(Eventually([&] { return !client->HasSignal("ShdPnd", SIGINT); }));
  EXPECT_TRUE(client->Running()) << client->err();
  client->Signal(SIGINT);
  EXPECT_EQ(client->Wait(kPatience), 130);
  EXPECT_EQ(client->err(), "") << "it has waited";
  world_.daemon(0).Signal(SIGCONT);
  EXPECT_TRUE(
      world_.WaitFor(0, "a cancelled job and no tensors", [&](const v1::GetStatusResponse& status) {
        return MetricOf(status, "jobs_cancelled_total") == 1 && TensorBytes(status) == 0;
      }));
}

// UCX's library installs handlers for SIGHUP and the fatal signals when it is loaded.
TEST_F(FaultAlone, AHangUpStopsTheDaemonCleanly) {
  if (!kSanitized) {
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGHUP})
      EXPECT_FALSE(world_.daemon(0).HasSignal("SigCgt", signal)) << signal;
  }
  world_.daemon(0).Signal(SIGHUP);
  EXPECT_EQ(world_.daemon(0).Wait(kPatience), 0);
  EXPECT_THAT(world_.daemon(0).err(), HasSubstr("received SIGHUP, stopping"));
}

// nohup ignores SIGHUP, and a script ignores SIGINT in the programs that it runs in the background.
TEST(FaultOfSignals, ADaemonIgnoresThoseThatWereIgnoredAtItsStart) {
  const std::vector<std::string> ignoring = {"/bin/sh", "-c",
                                             "trap '' HUP INT TERM; exec \"$0\" \"$@\""};
  World world({.hosts = {{ignoring, "127.0.0.1"}}});
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  Process& daemon = world.daemon(0);
  for (const int signal : {SIGHUP, SIGINT}) {
    EXPECT_TRUE(daemon.HasSignal("SigIgn", signal)) << signal;
    EXPECT_FALSE(daemon.HasSignal("SigBlk", signal)) << "a blocked signal is taken: " << signal;
    daemon.Signal(signal);
    EXPECT_TRUE(world.Connect(0)->GetStatus().ok()) << daemon.err();
  }
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(kPatience), 0);
  EXPECT_THAT(daemon.err(), HasSubstr("received SIGTERM, stopping"));
}

TEST_F(FaultAlone, AFileSizeLimitIsReportedAndDoesNotEndTheDaemon) {
  world_.daemon(0).Signal(SIGXFSZ);
  const Deadline end = Deadline::After(kPatience);
  while (world_.daemon(0).err().find("received SIGXFSZ") == std::string::npos) {
    ASSERT_FALSE(end.HasPassed()) << world_.daemon(0).err();
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(world_.WaitReady(0));
  EXPECT_TRUE(world_.daemon(0).Running());
}

TEST_F(FaultAlone, TheDaemonRaisesItsDescriptorLimit) {
  rlimit limit{};
  ASSERT_EQ(prlimit(world_.daemon(0).pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST(FaultOfAPut, APeerLostDuringAPutIsNotAFailedJob) {
  // Node 1 never answers a write, so the put is certain to be under way when it dies.
  World world({.nodes = 2, .node_failpoints = {{1, "store.hold=*"}}});
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  WriteNpy(world.Path("W.npy"), SmallIntegers(2048, 2048, 1));
  const auto put =
      world.StartCtl(0, {"tensor", "put", "W", world.Path("W.npy"), "--sharding", "[M_x, K]"});
  ASSERT_TRUE(world.WaitFor(0, "the space to be taken", [](const v1::GetStatusResponse& status) {
    return TensorBytes(status) > 0;
  }));
  world.Kill(1);
  EXPECT_EQ(put->Wait(kPatience), 3);
  EXPECT_THAT(put->err(), StartsWith("agmmctl: W was not written: "));
  EXPECT_THAT(put->err(), HasSubstr("agmmctl status --ready"));
}

}  // namespace
}  // namespace agmm
