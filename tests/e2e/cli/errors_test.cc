// Errors that users make: one clear line, the documented exit code, and no output file.
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

int Lines(const std::string& text) {
  return static_cast<int>(
      std::vector<std::string>(absl::StrSplit(text, '\n', absl::SkipEmpty())).size());
}

// An .npy file as NumPy writes it, with any header and data.
std::string NpyBytes(const std::string& descr, bool fortran, const std::string& shape,
                     int64_t data_bytes) {
  std::string header =
      absl::StrCat("{'descr': '", descr, "', 'fortran_order': ", fortran ? "True" : "False",
                   ", 'shape': ", shape, ", }");
  header.resize(117, ' ');
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += std::string("\x01\x00", 2);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  return bytes + header + std::string(data_bytes, '\0');
}

class OneNode : public ::testing::Test {
 protected:
  OneNode() : world_({.nodes = 1, .devices = 2, .heap = "1MiB"}) {}
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
    WriteNpy(world_.Path("A.npy"), SmallIntegers(8, 8, 1));
    WriteNpy(world_.Path("B.npy"), SmallIntegers(8, 8, 2));
    files_ = Files();
  }
  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(world_.Path("")))
      if (entry.path().filename().string().rfind("ctl", 0) != 0)
        names.insert(entry.path().filename());
    return names;
  }
  // Expects a failure with `code`, one line that contains `what`, and no file left behind.
  void ExpectRefused(const std::string& a, const std::string& b, std::vector<std::string> flags,
                     int code, const std::string& what) {
    files_ = Files();
    std::vector<std::string> arguments = {"matmul", world_.Path(a), world_.Path(b), "--out",
                                          world_.Path("C.npy")};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Ran ran = world_.Ctl(0, arguments);
    EXPECT_EQ(ran.exit_code, code) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_THAT(ran.err, AllOf(StartsWith("agmmctl: "), HasSubstr(what)));
    EXPECT_EQ(Lines(ran.err), 1) << ran.err;
    EXPECT_EQ(Files(), files_);
  }

  World world_;
  std::set<std::string> files_;
};

TEST_F(OneNode, FilesThatAreNoMatricesAreRefused) {
  WriteFile(world_.Path("short.npy"), NpyBytes("<f4", false, "(8, 8)", 8 * 8 * 4 - 1));
  WriteFile(world_.Path("fortran.npy"), NpyBytes("<f4", true, "(8, 8)", 8 * 8 * 4 - 1));
  WriteFile(world_.Path("object.npy"), NpyBytes("|O", false, "(8, 8)", 8 * 8 * 8));
  WriteFile(world_.Path("cube.npy"), NpyBytes("<f4", false, "(8, 8, 8)", 8 * 8 * 8 * 4));
  WriteFile(world_.Path("text.npy"), "1 2 3\n");
  for (const char* name : {"short.npy", "fortran.npy", "object.npy", "cube.npy", "text.npy"}) {
    ExpectRefused(name, "B.npy", {}, 2, world_.Path(name));
    ExpectRefused("A.npy", name, {}, 2, world_.Path(name));
  }
  ExpectRefused("none.npy", "B.npy", {}, 2,
                absl::StrCat("cannot open ", world_.Path("none.npy"), ": No such file"));
}

TEST_F(OneNode, ShapesThatDoNotFitNameBothFilesAndNumbers) {
  WriteNpy(world_.Path("B7.npy"), SmallIntegers(7, 5, 2));
  ExpectRefused(
      "A.npy", "B7.npy", {}, 2,
      absl::StrCat(world_.Path("A.npy"), " is 8 x 8 and ", world_.Path("B7.npy"), " is 7 x 5"));
}

TEST_F(OneNode, MeaninglessFlagsAreRefused) {
  ExpectRefused("A.npy", "B.npy", {"--algorithm", "magic"}, 2, "\"magic\"");
  ExpectRefused("A.npy", "B.npy", {"--dtype", "f64"}, 2, "f64");
  ExpectRefused("A.npy", "B.npy", {"--chunks", "-1"}, 2, "-1");
  ExpectRefused("A.npy", "B.npy", {"--timeout", "soon"}, 2, "\"soon\"");
  ExpectRefused("A.npy", "B.npy", {"--repeat", "-3"}, 2, "-3");
  ExpectRefused("A.npy", "B.npy", {"--repeat", "0"}, 2, "--repeat: Value 0 not in range");
  ExpectRefused("A.npy", "B.npy", {"--chunks", "0"}, 2, "--chunks: Value 0 not in range");
  ExpectRefused("A.npy", "B.npy", {"--mesh", "x=3"}, 2,
                "mesh x=3 needs 3 ranks and the world has 2");
  ExpectRefused("A.npy", "B.npy", {"--mesh", "x=2", "--workspace-shards", "1"}, 2,
                "--workspace-shards: Value 1 not in range 2 to 256");
}

TEST_F(OneNode, ASpecErrorPointsAtItsColumn) {
  const Ran ran =
      world_.Ctl(0, {"matmul", world_.Path("A.npy"), world_.Path("B.npy"), "--out",
                     world_.Path("C.npy"), "--spec", "A[M_x, K] * B[K, N_y] -> C[M, N_y]"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, StartsWith("agmmctl: spec column 20: "));
  EXPECT_THAT(ran.err, HasSubstr("\nA[M_x, K] * B[K, N_y] -> C[M, N_y]\n                   ^\n"));
  EXPECT_EQ(Files(), files_);
}

TEST_F(OneNode, AnOutputThatCannotBeWrittenIsRefusedFirst) {
  const Ran ran = world_.Ctl(0, {"matmul", world_.Path("A.npy"), world_.Path("B.npy"), "--out",
                                 world_.Path("nowhere/C.npy")});
  EXPECT_EQ(ran.exit_code, 2) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr(world_.Path("nowhere")));
  const Ran onto_input = world_.Ctl(
      0, {"matmul", world_.Path("A.npy"), world_.Path("B.npy"), "--out", world_.Path("B.npy")});
  EXPECT_EQ(onto_input.exit_code, 2);
  EXPECT_THAT(onto_input.err, HasSubstr("is the input"));
  EXPECT_EQ(MetricOf(world_.Status(0), "jobs_submitted_total"), 0);
}

TEST_F(OneNode, AFullHeapReportsFreeBytesAndAllocatesNothing) {
  const int64_t free = FreeBytes(world_.Status(0));
  WriteNpy(world_.Path("A1000.npy"), SmallIntegers(1000, 600, 1));
  WriteNpy(world_.Path("B1000.npy"), SmallIntegers(600, 1000, 2));
  ExpectRefused("A1000.npy", "B1000.npy", {}, 8, "free");
  EXPECT_TRUE(world_.WaitFor(0, "its bytes back", [&](const v1::GetStatusResponse& status) {
    return FreeBytes(status) == free;
  }));
  const Ran ran = world_.Ctl(
      0, {"matmul", world_.Path("A.npy"), world_.Path("B.npy"), "--out", world_.Path("C.npy")});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(SameBits(ReadNpy(world_.Path("C.npy")),
                       MatrixProduct(SmallIntegers(8, 8, 1), SmallIntegers(8, 8, 2))));
}

TEST_F(OneNode, AnAddressInUseIsNamed) {
  // The same file twice, with another socket: the port is already in use.
  Process second({Program("agmmd"), "--config", world_.Path("n0.txtpb"), "--socket",
                  world_.Path("second.sock")},
                 world_.Path("second"));
  ASSERT_EQ(second.Wait(kPatience), 3) << second.err();
  EXPECT_THAT(second.out() + second.err(), HasSubstr(world_.endpoint(0)));
  EXPECT_TRUE(world_.WaitReady(0));
}

TEST(Socket, InUseIsReportedAndTheFirstDaemonKeepsRunning) {
  World world({});  // used only for its folder
  const std::string socket = world.Path("s");
  auto start = [&](const std::string& name) {
    return std::make_unique<Process>(std::vector<std::string>{Program("agmmd"), "--socket", socket},
                                     world.Path(name));
  };
  const std::unique_ptr<Process> first = start("first");
  auto ready = [&] { return Connection(*ResolveEndpoint(socket)).GetStatus().ok(); };
  for (Deadline deadline = Deadline::After(kPatience); !ready() && !deadline.HasPassed();)
    absl::SleepFor(absl::Milliseconds(20));
  ASSERT_TRUE(ready()) << first->err();
  const std::unique_ptr<Process> second = start("second");
  EXPECT_EQ(second->Wait(kPatience), 3);
  EXPECT_THAT(second->out() + second->err(), HasSubstr(socket));
  EXPECT_TRUE(ready());
}

TEST(Socket, ADaemonThatHasServedStopsCleanly) {
  World world({});  // used only for its folder
  WriteNpy(world.Path("A.npy"), SmallIntegers(8, 8, 1));
  for (int run = 0; run < 6; ++run) {
    const std::string socket = world.Path("s");
    Process daemon({Program("agmmd"), "--socket", socket}, world.Path(absl::StrCat("daemon", run)));
    auto ready = [&] {
      const auto status = Connection(*ResolveEndpoint(socket)).GetStatus();
      return status.ok() && status->ready();
    };
    for (Deadline deadline = Deadline::After(kPatience); !ready() && !deadline.HasPassed();)
      absl::SleepFor(absl::Milliseconds(20));
    Process client({Program("agmmctl"), "--endpoint", socket, "matmul", world.Path("A.npy"),
                    world.Path("A.npy"), "--out", world.Path("C.npy")},
                   world.Path(absl::StrCat("client", run)));
    EXPECT_EQ(client.Wait(kPatience), 0) << client.err();
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(kPatience), 0) << daemon.err();
  }
}

TEST(ControlCharacters, DoNotReachTheTerminal) {
  const TempFolder folder("control");
  Process agmmctl({Program("agmmctl"), "\x1b[31m"}, folder / "agmmctl");
  EXPECT_EQ(agmmctl.Wait(kPatience), 2);
  EXPECT_THAT(agmmctl.err(), HasSubstr("\\x1b[31m"));
  EXPECT_THAT(agmmctl.err(), Not(HasSubstr("\x1b")));
}

TEST(NoDaemon, IsNamedWithWhatToDo) {
  World world({});
  const Ran ran = world.Ctl(0, {"status"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_EQ(ran.err,
            absl::StrCat("agmmctl: no daemon answers at ", world.endpoint(0),
                         "; start one with `agmmd`, or give the endpoint of one with --endpoint: "
                         "host:port or unix:/path\n"));
}

TEST(NoDaemon, AHostWithoutAnAddressIsReported) {
  World world({});
  Process agmmctl({Program("agmmctl"), "--endpoint", "no..host:7101", "status"}, world.Path("ctl"));
  EXPECT_EQ(agmmctl.Wait(kPatience), 3);
  EXPECT_EQ(
      agmmctl.err(),
      "agmmctl: the host of no..host:7101 cannot be found; check its name, or give its address\n");
}

TEST(IncompleteWorld, NamesTheMissingNodes) {
  for (int present : {0, 1}) {
    World world({.nodes = 2});
    world.Start(present);
    ASSERT_TRUE(
        world.WaitFor(present, "an answer", [](const v1::GetStatusResponse&) { return true; }));
    WriteNpy(world.Path("A.npy"), SmallIntegers(8, 8, 1));
    const Ran ran = world.Ctl(present, {"matmul", world.Path("A.npy"), world.Path("A.npy"), "--out",
                                        world.Path("C.npy")});
    EXPECT_EQ(ran.exit_code, 3);
    EXPECT_THAT(ran.err, HasSubstr(absl::StrCat("n", 1 - present)));
    EXPECT_EQ(Lines(ran.err), 1) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(world.Path("C.npy")));
    const Ran tune = world.Ctl(present, {"tune", "M=8,N=8,K=8", "--mesh", "x=1"});
    EXPECT_EQ(tune.exit_code, 3);
    EXPECT_THAT(tune.err, HasSubstr(absl::StrCat("n", 1 - present)));
    EXPECT_EQ(Lines(tune.err), 1) << tune.err;
    const Ran status = world.Ctl(present, {"status"});
    EXPECT_EQ(status.exit_code, 0) << status.err;
    EXPECT_THAT(status.out, HasSubstr("not ready: "));
  }
}

TEST(StatusReady, WaitsForTheDaemonAndForTheWorld) {
  World world({.nodes = 2});
  const Ran alone = world.Ctl(0, {"status", "--ready", "--timeout", "200ms"});
  EXPECT_EQ(alone.exit_code, 3);
  EXPECT_THAT(alone.err, HasSubstr("after 200ms: no daemon answers"));
  const auto waiting = world.StartCtl(0, {"status", "--ready", "--timeout", "60s"});
  world.Start(0);
  ASSERT_TRUE(world.WaitFor(0, "an answer", [](const v1::GetStatusResponse&) { return true; }));
  const Ran incomplete = world.Ctl(0, {"status", "--ready", "--timeout", "200ms"});
  EXPECT_EQ(incomplete.exit_code, 3);
  EXPECT_THAT(incomplete.err, HasSubstr("n1"));
  EXPECT_TRUE(waiting->Running());
  world.Start(1);
  EXPECT_EQ(waiting->Wait(kPatience), 0) << waiting->err();
  EXPECT_THAT(waiting->out(), HasSubstr("generation 1  ready"));
  EXPECT_EQ(world.Ctl(0, {"status", "--timeout", "1s"}).exit_code, 2) << "only with --ready";
}

TEST(Config, AMistakeIsNamedWithFileLineAndColumn) {
  World world({});
  const std::string path = world.Path("typo.txtpb");
  WriteFile(path, "world {\n  cluster: \"test\"\n  nodee { name: \"a\" }\n}\n");
  Process daemon({Program("agmmd"), "--config", path}, world.Path("typo"));
  EXPECT_EQ(daemon.Wait(kPatience), 2);
  EXPECT_THAT(daemon.err(), HasSubstr(absl::StrCat(path, ":3:")));
  EXPECT_EQ(Lines(daemon.err()), 1) << daemon.err();
}

}  // namespace
}  // namespace agmm
