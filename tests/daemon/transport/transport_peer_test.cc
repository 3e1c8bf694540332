// Peers that die, hang and come back; transports that end under load. The peer is a second process
// of this binary.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <list>
#include <string>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/daemon/transport/transport_harness.h"

namespace agmm {
namespace {

constexpr int64_t kLarge = 9 << 20;

std::string ReadLine(int fd) {
  std::string line;
  for (char c; read(fd, &c, 1) == 1 && c != '\n';) line.push_back(c);
  return line;
}
void WriteLine(int fd, const std::string& line) {
  const std::string all = line + "\n";
  ASSERT_EQ(write(fd, all.data(), all.size()), static_cast<ssize_t>(all.size()));
}

// Node 1 in its own process. Prints its address, reads node 0's and the generation, and floods node
// 0 with large messages while it parks ("park") or accepts ("take") all messages.
int PeerMain(const std::string& mode) {
  Node node;
  if (mode == "take") node.receiver.TakeAll();
  WriteLine(STDOUT_FILENO, absl::BytesToHexString(node.port.address));
  const std::string address = absl::HexStringToBytes(ReadLine(STDIN_FILENO));
  const uint64_t generation = std::stoull(ReadLine(STDIN_FILENO));
  node.transport->SetWorld(generation, 1, kKey);
  if (!node.transport->Connect(0, address).ok()) return 1;
  WriteLine(STDOUT_FILENO, "ready");
  std::vector<std::byte> bytes(kLarge);
  std::atomic<int> under_way{0};
  for (int i = 0;; ++i) {
    while (under_way >= 4) absl::SleepFor(absl::Microseconds(100));
    ++under_way;
    node.transport->Send(0, {1, generation, 1, i, 0}, {bytes.data(), 1, kLarge, kLarge},
                         [&](absl::Status) { --under_way; });
  }
}

class PeerProcess {
 public:
  explicit PeerProcess(const std::string& mode) {
    int to[2], from[2];
    EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      execl("/proc/self/exe", "peer", "--peer", mode.c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
    address_ = absl::HexStringToBytes(ReadLine(from_));
    EXPECT_FALSE(address_.empty());
  }
  ~PeerProcess() {
    Signal(SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it has ended by itself, with " << WEXITSTATUS(status);
    close(to_);
    close(from_);
  }
  void Join(const TransportPort& port, uint64_t generation) {
    WriteLine(to_, absl::BytesToHexString(port.address));
    WriteLine(to_, absl::StrCat(generation));
    EXPECT_EQ(ReadLine(from_), "ready");
  }
  void Signal(int signal) const { kill(pid_, signal); }
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string address_;
};

// Node 0, which receives every message into the same scratch memory.
class ScratchReceiver : public Receiver {
 public:
  Verdict Accept(int, const Message&, int64_t bytes, Arrival* arrival) override {
    ++accepted;
    arrival->to = {memory_.data(), 1, bytes, bytes};
    return Verdict::kReceive;
  }
  void Lost(int, const Message&, const absl::Status& why) override { ADD_FAILURE() << why; }
  void Arrived(int, const Message&, const Arrival&, const absl::Status& status) override {
    ++(status.ok() ? arrived : failed);
  }
  std::atomic<int> accepted{0}, arrived{0}, failed{0};

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(kLarge);
};

struct Survivor {
  ScratchReceiver receiver;
  MatrixStore store{1, 1, 1};
  std::vector<std::byte> bytes = std::vector<std::byte>(kLarge);
  Outcomes failures;
  std::unique_ptr<UcxTransport> transport;  // destroyed first, because it calls the rest

  Survivor() {
    transport = UcxTransport::Create({}, &receiver, &store).value();
    transport->OnPeerFailure([this](int, absl::Status why) { failures.Add(std::move(why)); });
  }
  void Join(PeerProcess& peer, uint64_t generation) {
    const TransportPort port = Renewed(*transport);
    transport->SetWorld(generation, 0, kKey);
    const absl::Status status = transport->Connect(1, peer.address());
    ASSERT_TRUE(status.ok()) << status;
    peer.Join(port, generation);
  }
  void Send(int count, uint64_t epoch, Outcomes* sent) {
    for (int i = 0; i < count; ++i) {
      const int64_t size = i % 4 == 0 ? 0 : i % 4 == 1 ? 1000 : kLarge;
      transport->Send(1, {1, epoch, 0, i, 0}, {bytes.data(), 1, size, size}, sent->Next());
    }
  }
  bool EverythingAcceptedHasEnded() {
    return Eventually([&] { return receiver.arrived + receiver.failed == receiver.accepted; });
  }
};

TEST(TransportPeer, AKilledPeerFailsTransfersAndIsReplaced) {
  Survivor survivor;
  for (uint64_t generation = 1; generation <= 4; ++generation) {
    SCOPED_TRACE(absl::StrCat("generation ", generation));
    PeerProcess peer(generation % 2 == 0 ? "take" : "park");
    survivor.Join(peer, generation);
    // Bytes arrive, and large sends wait for a receiver that does not want them yet.
    const int before = survivor.receiver.arrived;
    ASSERT_TRUE(Eventually([&] { return survivor.receiver.arrived >= before + 5; }));
    Outcomes sent, bulk;
    survivor.Send(40, generation, &sent);
    std::vector<std::byte> back(100);
    const absl::Time killed = absl::Now();
    peer.Signal(SIGKILL);
    survivor.transport->ReadBlock(1, {7, 0, 0, 1, 0, 100}, {back.data(), 1, 100, 100}, bulk.Next());
    ASSERT_TRUE(sent.Wait(40));
    ASSERT_TRUE(bulk.Wait(1));
    ASSERT_TRUE(survivor.failures.Wait(generation));
    printf("all ended %s after the kill\n", absl::FormatDuration(absl::Now() - killed).c_str());
    int failed = 0;
    for (const absl::Status& status : sent.all()) {
      if (status.ok()) continue;
      ++failed;
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    }
    // A peer that parks leaves the large messages in flight.
    EXPECT_TRUE(failed > 0 || generation % 2 == 0);
    Renewed(*survivor.transport);
    EXPECT_TRUE(survivor.EverythingAcceptedHasEnded());
  }
  EXPECT_EQ(survivor.transport->counters().peers_failed, 4);
}

TEST(TransportPeer, ARenewalEndsTransfersToAHangingPeer) {
  Survivor survivor;
  PeerProcess peer("park");
  survivor.Join(peer, 1);
  ASSERT_TRUE(Eventually([&] { return survivor.receiver.arrived >= 5; }));
  peer.Signal(SIGSTOP);
  Outcomes sent;
  survivor.Send(40, 1, &sent);
  const absl::Time from = absl::Now();
  Renewed(*survivor.transport);
  printf("renewed after %s\n", absl::FormatDuration(absl::Now() - from).c_str());
  EXPECT_EQ(sent.all().size(), 40u);
  EXPECT_TRUE(survivor.EverythingAcceptedHasEnded());
  Outcomes late;
  survivor.Send(1, 1, &late);
  ASSERT_TRUE(late.Wait(1));
  EXPECT_EQ(late.all()[0].code(), absl::StatusCode::kAborted);
  // The awakened peer is cut off; the survivor continues with the next incarnation.
  peer.Signal(SIGCONT);
  PeerProcess next("take");
  survivor.Join(next, 2);
  const int before = survivor.receiver.arrived;
  EXPECT_TRUE(Eventually([&] { return survivor.receiver.arrived >= before + 5; }));
}

TEST(TransportPeer, TheSameTransportsConnectAgainAfterARenewal) {
  Cluster cluster(2);
  cluster.receiver(0).TakeAll();
  cluster.receiver(1).TakeAll();
  for (uint64_t generation = 2; generation < 12; ++generation) {
    SCOPED_TRACE(absl::StrCat("generation ", generation));
    for (int node : {0, 1}) cluster.nodes[node]->port = Renewed(cluster[node]);
    cluster.SetWorld(generation);
    cluster.Connect();
    std::vector<std::byte> bytes(1 << 20);
    Outcomes sent;
    for (int node : {0, 1}) {
      cluster[node].Send(1 - node, {1, generation, node, 0, 0}, {bytes.data(), 1, 1 << 20, 1 << 20},
                         sent.Next());
    }
    ASSERT_TRUE(sent.Wait(2));
    for (const absl::Status& status : sent.all()) EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(TransportPeer, ATransportCanEndUnderLoad) {
  for (int round = 0; round < 5; ++round) {
    Outcomes sent;
    std::vector<std::byte> bytes(1 << 20);
    std::array<std::array<std::byte, 100>, 3> read;
    {
      Cluster cluster(3);
      cluster.receiver(0).TakeAll();
      cluster.receiver(1).TakeAll();  // node 2 parks
      for (int i = 0; i < 60; ++i) {
        for (int node : {0, 1, 2}) {
          const int64_t size = i % 2 == 0 ? 100 : 1 << 20;
          cluster[node].Send((node + 1) % 3, {1, 1, node, i, 0}, {bytes.data(), 1, size, size},
                             sent.Next());
          cluster[node].ReadBlock((node + 2) % 3, {7, 0, 0, 1, 0, 100},
                                  {read[node].data(), 1, 100, 100}, sent.Next());
        }
      }
      cluster.nodes[1]->transport.reset();
      if (round % 2 == 1) cluster.nodes[0]->transport.reset();
    }
    EXPECT_EQ(sent.all().size(), 360u)
        << "a callback ran not exactly once by the end of the destructors";
  }
}

// True if all threads of this process but the calling one sleep.
bool OtherThreadsSleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == absl::StrCat(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    std::string text;
    std::getline(file, text);
    // The state follows the name in parentheses.
    const size_t name_end = text.rfind(") ");
    if (name_end != std::string::npos && text[name_end + 2] != 'S') return false;
  }
  return true;
}

TEST(TransportPeer, IdleTransportsSleep) {
  Cluster cluster(3);
  cluster.receiver(1).TakeAll();
  Outcomes sent;
  cluster[0].Send(1, {1, 1, 0, 0, 0}, {}, sent.Next());
  ASSERT_TRUE(cluster.receiver(1).arrived.Wait(1));
  // A thread that spins is never seen asleep, however busy the machine is.
  constexpr int kInARow = 50;
  int asleep = 0;
  EXPECT_TRUE(Eventually([&] {
    asleep = OtherThreadsSleep() ? asleep + 1 : 0;
    return asleep == kInARow;
  }));
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--peer") return agmm::PeerMain(argv[2]);
  signal(SIGPIPE, SIG_IGN);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
