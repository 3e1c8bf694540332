// agmmd under a service manager: what it reports to NOTIFY_SOCKET, and when.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "tests/e2e/world.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Receives datagrams, like systemd's socket. `name` is a path, or '@' and an abstract name.
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& name)
      : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0) << name;
  }
  ~NotifySocket() { close(fd_); }
  NotifySocket(const NotifySocket&) = delete;

  // Sends datagrams to itself until no more fit, so that the next sender waits. Returns how many.
  int Fill(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int count = 0;
    while (sendto(sender, "full", 4, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&address),
                  sizeof(address)) == 4)
      ++count;
    close(sender);
    return count;
  }
  // Returns the next datagram; empty if none arrives within kPatience.
  std::string Receive() {
    pollfd ready{fd_, POLLIN, 0};
    if (poll(&ready, 1, kPatienceMs.count()) != 1) return "";
    char text[4096];
    const ssize_t size = recv(fd_, text, sizeof(text), 0);
    return std::string(text, size < 0 ? 0 : size);
  }

 private:
  const int fd_;
};

class Service : public ::testing::Test {
 protected:
  // A world whose daemons report to `socket`.
  static WorldOptions Reporting(const std::string& socket, int nodes = 1) {
    return {.nodes = nodes, .environment = {{"NOTIFY_SOCKET", socket}}};
  }
  std::string path() const { return folder_ / "notify"; }

  const TempFolder folder_{"service"};
};

TEST_F(Service, ReportsThatItIsReadyAndThatItStops) {
  NotifySocket manager(path());
  World world(Reporting(path()));
  world.Start(0);
  EXPECT_EQ(manager.Receive(), "READY=1\nSTATUS=serving as node n0 of cluster test");
  // The world is ready at once.
  EXPECT_EQ(world.Ctl(0, {"status"}).exit_code, 0);
  world.daemon(0).Signal(SIGTERM);
  EXPECT_EQ(manager.Receive(), "STOPPING=1\nSTATUS=stopping");
  EXPECT_EQ(world.daemon(0).Wait(kPatience), 0);
}

TEST_F(Service, StopsCleanlyWhileReportingThatItIsReady) {
  NotifySocket manager(path());
  const int full = manager.Fill(path());
  World world(Reporting(path()));
  world.Start(0);
  // Waits until its main thread blocks in a send.
  const std::string sending = absl::StrCat(SYS_sendto, " ");
  ASSERT_TRUE(Eventually([&] {
    return absl::StartsWith(ReadFile(absl::StrCat("/proc/", world.daemon(0).pid(), "/syscall")),
                            sending);
  }));
  world.daemon(0).Signal(SIGTERM);
  ASSERT_TRUE(Eventually(
      [&] { return world.daemon(0).err().find("received SIGTERM") != std::string::npos; }));
  for (int i = 0; i < full; ++i) EXPECT_EQ(manager.Receive(), "full");
  EXPECT_THAT(manager.Receive(), StartsWith("READY=1\n"));
  EXPECT_EQ(manager.Receive(), "STOPPING=1\nSTATUS=stopping");
  EXPECT_EQ(world.daemon(0).Wait(kPatience), 0);
}

TEST_F(Service, IsReadyInAnIncompleteWorld) {
  NotifySocket manager(path());
  World world(Reporting(path(), 2));
  world.Start(1);
  EXPECT_THAT(manager.Receive(), StartsWith("READY=1\nSTATUS=serving as node n1 "));
  EXPECT_TRUE(world.daemon(1).Running());
}

TEST_F(Service, ReachesAManagerWithAnAbstractSocket) {
  // Named after the folder, so that tests that run in parallel do not collide.
  const std::string name = "@" + folder_.path();
  NotifySocket manager(name);
  World world(Reporting(name));
  world.Start(0);
  EXPECT_THAT(manager.Receive(), StartsWith("READY=1\n"));
}

TEST_F(Service, ReportsWhyItCannotStart) {
  World holder({});
  ASSERT_NO_FATAL_FAILURE(holder.StartAll());
  NotifySocket manager(path());
  Process second({Program("agmmd"), "--config", holder.Path("n0.txtpb")}, folder_ / "second",
                 {{"NOTIFY_SOCKET", path()}});
  EXPECT_EQ(second.Wait(kPatience), 3) << second.err();
  const std::string said = manager.Receive();
  EXPECT_THAT(said, StartsWith("STATUS=socket "));
  EXPECT_THAT(said, HasSubstr("is in use by pid"));
}

TEST_F(Service, ASignalEndsAStartThatWaits) {
  World holder({});
  ASSERT_NO_FATAL_FAILURE(holder.StartAll());
  // The second daemon waits for the lock of the socket.
  Process second({Program("agmmd"), "--config", holder.Path("n0.txtpb")}, folder_ / "second");
  const Deadline end = Deadline::After(kPatience);
  while (second.err().find("waiting up to") == std::string::npos) {
    ASSERT_FALSE(end.HasPassed()) << second.err();
    absl::SleepFor(absl::Milliseconds(1));
  }
  second.Signal(SIGTERM);
  EXPECT_EQ(second.Wait(kPatience), 0) << second.err();
  EXPECT_THAT(second.err(), HasSubstr("received SIGTERM during the start, stopping"));
}

TEST_F(Service, ASignalEndsAStartThatReadsItsConfiguration) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int writer = open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(write(writer, "world", 5), 5);
  Process daemon({Program("agmmd"), "--config", pipe}, folder_ / "daemon");
  EXPECT_TRUE(Eventually([writer] {
    int unread = 5;
    return ioctl(writer, FIONREAD, &unread) == 0 && unread == 0;
  })) << daemon.err();
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(kPatience), 0) << daemon.err();
  EXPECT_THAT(daemon.err(), HasSubstr("received SIGTERM during the start, stopping"));
  close(writer);
}

// The stdin of a Process is /dev/null, which has ended.
TEST_F(Service, StopsAtTheEndOfStdinOnRequestAndRemovesTheFolderThatItMade) {
  const std::string own = folder_ / "own", empty = folder_ / "empty", shared = folder_ / "shared";
  std::filesystem::create_directory(empty);
  std::filesystem::create_directory(shared);
  WriteFile(shared + "/kept", "");
  const std::string config = folder_ / "local.txtpb";
  WriteFile(config,
            "world { cluster: \"test\" node { name: \"local\" devices: 1 } }\n"
            "local { node: \"local\" socket: \"/unused\" journal: \"none\" machines: \"none\"\n"
            "        device { kind: \"cpu\" heap: \"1MiB\" } }");
  for (const std::string& folder : {own, empty, shared}) {
    Process daemon({Program("agmmd"), "--config", config, "--socket", folder + "/agmmd.sock",
                    "--until-stdin-ends"},
                   folder + ".log");
    EXPECT_EQ(daemon.Wait(kPatience), 0) << daemon.err();
    EXPECT_THAT(daemon.err(), HasSubstr("stdin has ended"));
    EXPECT_THAT(daemon.err(), HasSubstr("received SIGTERM, stopping"));
  }
  EXPECT_FALSE(std::filesystem::exists(own));
  EXPECT_TRUE(std::filesystem::is_empty(empty));
  EXPECT_EQ(std::filesystem::remove_all(shared), 2u) << "the folder and the file kept";
}

TEST_F(Service, RunsWithAnUnreachableManager) {
  const std::string too_long = "/" + std::string(200, 'x');
  for (const std::string& name : {path(), too_long, std::string("vsock:2:1")}) {
    World world(Reporting(name));
    ASSERT_NO_FATAL_FAILURE(world.StartAll());
    EXPECT_THAT(ReadFile(world.Path("n0.err")), HasSubstr("NOTIFY_SOCKET=" + name));
  }
}

}  // namespace
}  // namespace agmm
