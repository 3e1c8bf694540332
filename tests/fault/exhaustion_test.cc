// Daemons without enough address space or threads: they serve, or report the reason in one line.
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr int kFailed = 1;  // of agmmd

// Returns a prefix that runs a program with this much address space.
std::vector<std::string> Within(int64_t mib) {
  return {"/bin/sh", "-c", "ulimit -v $0 && exec \"$@\"", absl::StrCat(mib << 10)};
}

std::vector<std::string> Errors(const std::string& log) {
  std::vector<std::string> errors;
  for (absl::string_view line : absl::StrSplit(log, '\n'))
    if (absl::StrContains(line, " error ") || absl::StartsWith(line, "agmmd:") ||
        absl::StrContains(line, "terminate"))
      errors.emplace_back(line);
  return errors;
}

// With 2 `nodes`, the daemon uses UCX. Only the first daemon runs, which serves even while the
// other one is missing.
void ServesOrSaysWhyNot(int nodes, int64_t mib, bool* served) {
  SCOPED_TRACE(absl::StrCat(mib, " MiB"));
  World world(
      {.nodes = nodes, .heap = "16MiB", .hosts = {{Within(mib), "127.0.0.1"}, {{}, "127.0.0.1"}}});
  world.Start(0);
  Process& daemon = world.daemon(0);
  *served = Eventually([&] {
              return !daemon.Running() || absl::StrContains(daemon.err(), "listening on 127.0.0.1");
            }) &&
            daemon.Running();
  if (*served) {
    EXPECT_EQ(world.Status(0).nodes_size(), nodes);
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(kPatience), 0) << daemon.err();
  } else {
    EXPECT_EQ(daemon.Wait(kPatience), kFailed) << daemon.err();
    const std::vector<std::string> errors = Errors(daemon.err());
    ASSERT_EQ(errors.size(), 1u) << daemon.err();
    EXPECT_THAT(errors[0], HasSubstr("ulimit -v"));
  }
}

class AddressSpace : public ::testing::TestWithParam<int> {};

TEST_P(AddressSpace, ALimitThatIsTooLowIsReportedInOneLine) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes terabytes of addresses";
  bool served = false;
  // With less, the system cannot load the program.
  for (int64_t mib : {100, 140, 200, 300, 400, 500, 600, 700, 1000})
    ServesOrSaysWhyNot(GetParam(), mib, &served);
  for (int64_t mib = 2000; !served && mib < 64000; mib *= 2)
    ServesOrSaysWhyNot(GetParam(), mib, &served);
  EXPECT_TRUE(served);
}

INSTANTIATE_TEST_SUITE_P(Nodes, AddressSpace, ::testing::Values(1, 2));

TEST(Descriptors, TooFewAreReportedInOneLine) {
  WorldOptions options{.nodes = 2};
  options.hosts.assign(2, {{"/usr/bin/prlimit", "--nofile=79"}, "127.0.0.1"});
  World world(options);
  world.Start(0);
  EXPECT_EQ(world.daemon(0).Wait(kPatience), kFailed) << world.daemon(0).err();
  const std::vector<std::string> errors = Errors(world.daemon(0).err());
  ASSERT_EQ(errors.size(), 1u) << world.daemon(0).err();
  EXPECT_THAT(errors[0], HasSubstr("79 descriptors may be open"));
  EXPECT_THAT(errors[0], HasSubstr("2 nodes takes up to 80; raise ulimit -n"));
}

TEST(Threads, AThreadThatCannotStartIsNamed) {
  for (const char* purpose :
       {"the daemon's state", "worker 1 of 1 of a device", "plans", "large plans", "fills",
        "the transport", "the transport's handshakes", "heartbeats", "plans and their proofs",
        "large plans and their proofs", "the UDP heartbeats", "accepting connections"}) {
    SCOPED_TRACE(purpose);
    World world({.nodes = 2, .failpoints = absl::StrCat("thread.none ", purpose, "=*")});
    world.Start(0);
    EXPECT_EQ(world.daemon(0).Wait(kPatience), kFailed) << world.daemon(0).err();
    const std::vector<std::string> errors = Errors(world.daemon(0).err());
    ASSERT_EQ(errors.size(), 1u) << world.daemon(0).err();
    EXPECT_THAT(errors[0], HasSubstr(absl::StrCat("no thread for ", purpose, " could be started")));
    EXPECT_THAT(errors[0], HasSubstr("ulimit -u"));
  }
}

TEST(Threads, ADaemonServesWithoutTheThreadOfItsFileSocket) {
  World world({.failpoints = "thread.none the file socket=*"});
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  world.daemon(0).Signal(SIGTERM);
  EXPECT_EQ(world.daemon(0).Wait(kPatience), 0);
}

TEST(Memory, APlanWithoutMemoryFailsOnlyItsJob) {
  World world({.nodes = 2, .failpoints = "memory.none=1"});
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  WriteNpy(world.Path("A.npy"), SmallIntegers(64, 64, 1));
  const auto matmul = [&] {
    return world.Ctl(
        0, {"matmul", world.Path("A.npy"), world.Path("A.npy"), "--out", world.Path("C.npy")});
  };
  // First the sequencer's, then node 1's.
  for (const char* what : {"the plan and proof of A[", "node n1: the plan"}) {
    const Ran failed = matmul();
    EXPECT_NE(failed.exit_code, 0);
    EXPECT_THAT(failed.err, HasSubstr(what));
    EXPECT_THAT(failed.err, HasSubstr("needs more memory"));
  }
  const Ran third = matmul();
  EXPECT_EQ(third.exit_code, 0) << third.err;
}

}  // namespace
}  // namespace agmm
