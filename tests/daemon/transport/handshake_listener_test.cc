// Bytes that strangers send to the port of a transport are refused, and delay no node.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/transport/address.h"
#include "daemon/transport/token.h"
#include "gtest/gtest.h"
#include "tests/daemon/transport/transport_harness.h"

namespace agmm {
namespace {

constexpr char kSecret[] = "the secret of this test's world";

TransportOptions WithSecret(const std::string& secret = kSecret) {
  TransportOptions options;
  options.secret = secret;
  return options;
}

class Stranger {
 public:
  explicit Stranger(const TransportPort& port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const std::vector<std::string> parts = absl::StrSplit(port.endpoint, ':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(parts[1])));
    EXPECT_EQ(inet_pton(AF_INET, parts[0].c_str(), &address.sin_addr), 1);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    timeval limit{};
    limit.tv_sec = 60;
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  ~Stranger() { close(fd_); }
  Stranger(const Stranger&) = delete;

  // Uses write, because in this process, which belongs to the world, send adds a token to
  // connections to a peer.
  void Say(const std::string& bytes) {
    EXPECT_EQ(write(fd_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  // Returns true once the other end has closed the connection without sending a byte.
  bool IsClosed() {
    char byte;
    const ssize_t count = recv(fd_, &byte, 1, 0);
    return count == 0 || (count < 0 && errno == ECONNRESET);
  }

 private:
  const int fd_;
};

// Checks that the nodes can still exchange messages.
void ExpectWorks(Cluster& cluster) {
  Outcomes answers;
  cluster[0].Ping(1, answers.Next());
  cluster[1].Ping(0, answers.Next());
  ASSERT_TRUE(answers.Wait(2));
  for (const absl::Status& status : answers.all()) EXPECT_TRUE(status.ok()) << status;
}

TEST(HandshakeListener, BytesOfStrangersAreRefused) {
  Cluster cluster(2, WithSecret());
  const TransportPort& port = cluster.nodes[0]->port;
  // UCX begins with this number, then a header of an active message and its bytes.
  const std::string magic("\xcd\xab\x17\xca\xd0\xff\x00\xca", 8);
  std::mt19937_64 random(TestSeed());
  std::vector<std::string> messages = {"",    "G",        "GET / HTTP/1.1\r\n\r\n",
                                       magic, "agmmgat1", "agmmgat1" + std::string(48, 'x')};
  for (int i = 0; i < 54; ++i) {
    std::string bytes = i % 2 == 0 ? magic : "";
    while (bytes.size() < 200) bytes.push_back(static_cast<char>(random()));
    messages.push_back(std::move(bytes));
  }
  int complete = 0;
  for (const std::string& message : messages) {
    Stranger stranger(port);
    stranger.Say(message);
    if (message.size() < transport::kTokenBytes) continue;  // may be the beginning of a token
    EXPECT_TRUE(stranger.IsClosed()) << message;
    ++complete;
  }
  EXPECT_TRUE(Eventually([&] { return cluster[0].refused_connections() >= complete; }));
  ExpectWorks(cluster);
}

TEST(HandshakeListener, ATokenIsAcceptedOnce) {
  Cluster cluster(2, WithSecret());
  const TransportPort& port = cluster.nodes[0]->port;
  const std::string salt = transport::Unframe(port.address)->listener.salt;
  Stranger other(port), first(port), again(port);
  other.Say(transport::MakeToken("another secret", salt));
  EXPECT_TRUE(other.IsClosed());
  const std::string token = transport::MakeToken(kSecret, salt);
  first.Say(token);
  EXPECT_TRUE(Eventually([&] { return cluster[0].refused_connections() == 1; }));
  again.Say(token);
  EXPECT_TRUE(again.IsClosed()) << "a token that was seen on the way is accepted again";
  Stranger elsewhere(cluster.nodes[1]->port);
  elsewhere.Say(transport::MakeToken(kSecret, salt));
  EXPECT_TRUE(elsewhere.IsClosed()) << "a token for one listener is accepted by another";
  ExpectWorks(cluster);
}

TEST(HandshakeListener, AFloodOfConnectionsDelaysNoNode) {
  Cluster cluster(2, WithSecret());
  std::vector<std::unique_ptr<Stranger>> flood;
  for (int node : {0, 1}) cluster.nodes[node]->port = Renewed(cluster[node]);
  // More than may be pending, and fewer than this process may have descriptors for.
  for (int i = 0; i < 300; ++i) flood.push_back(std::make_unique<Stranger>(cluster.nodes[0]->port));
  cluster.SetWorld(2);
  cluster.Connect();
  EXPECT_GT(cluster[0].refused_connections(), 0);
}

TEST(HandshakeListener, NodesWithDifferentSecretsDoNotConnect) {
  Node a(WithSecret()), b(WithSecret("another"));
  a.transport->SetWorld(1, 0, kKey);
  b.transport->SetWorld(1, 1, kKey);
  ASSERT_TRUE(a.transport->Connect(1, b.port.address).ok());
  ASSERT_TRUE(b.transport->Connect(0, a.port.address).ok());
  Outcomes answers;
  a.transport->Ping(1, answers.Next());
  EXPECT_TRUE(Eventually(
      [&] { return a.transport->refused_connections() + b.transport->refused_connections() > 0; }));
  EXPECT_EQ(a.receiver.offered() + b.receiver.offered(), 0);
}

TEST(HandshakeListener, ListensOnAPortOfTheRange) {
  const int free = [] {
    Node node(WithSecret());
    return std::stoi(node.port.endpoint.substr(node.port.endpoint.rfind(':') + 1));
  }();
  TransportOptions options = WithSecret();
  options.ports = {free, free};
  {
    TransportOptions without = options;
    without.other_ports = {free};
    MapReceiver receiver;
    MatrixStore store(1, 1, 1);
    EXPECT_EQ(UcxTransport::Create(without, &receiver, &store).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  Node node(options);
  EXPECT_EQ(node.port.endpoint, absl::StrCat("127.0.0.1:", free));
  EXPECT_EQ(Renewed(*node.transport).endpoint, node.port.endpoint);
  MapReceiver receiver;
  MatrixStore store(1, 1, 1);
  const absl::Status status = UcxTransport::Create(options, &receiver, &store).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find(absl::StrCat("no port of transport_ports \"", free, "-", free)),
            std::string::npos)
      << status;
}

}  // namespace
}  // namespace agmm
