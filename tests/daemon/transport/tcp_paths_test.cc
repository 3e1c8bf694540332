#include "daemon/transport/tcp_paths.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "kernels/base/deadline.h"

namespace agmm::transport {
namespace {

// A listener on a loopback address, and a connection to it from this process.
class Link {
 public:
  explicit Link(const std::string& ip) : address(*SocketAddress::OfIp(ip)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, address.get(), sizeof(sockaddr_in)), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, address.get(), &address.size), 0);
    out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    connect(out, address.get(), address.size);
    in = accept(listener_, nullptr, nullptr);
    EXPECT_GE(in, 0);
  }
  ~Link() {
    for (int fd : {in, out, listener_}) close(fd);
  }

  SocketAddress address;
  int in = -1, out = -1;

 private:
  int listener_ = -1;
};

TcpUse UseOf(const TcpPaths& paths, int node) {
  const auto uses = paths.Uses();
  const auto it = uses.find(node);
  return it == uses.end() ? TcpUse{-1, -1, -1} : it->second;
}

TEST(TcpPaths, CountAcknowledgedAndWaitingBytes) {
  Link link("127.0.0.2");
  TcpPaths paths;
  paths.Reset(1);
  EXPECT_EQ(UseOf(paths, 1).acked_bytes, -1);
  paths.Add(1, link.address);
  const std::vector<char> bytes(1 << 16);
  const ssize_t sent = send(link.out, bytes.data(), bytes.size(), 0);
  ASSERT_GT(sent, 0);
  const Deadline end = Deadline::After(absl::Seconds(20));
  while (UseOf(paths, 1).acked_bytes < sent && !end.HasPassed()) {
  }
  EXPECT_GE(UseOf(paths, 1).acked_bytes, sent);
  // The other end does not read, so that the buffers of both ends fill up.
  while (send(link.out, bytes.data(), bytes.size(), 0) > 0) {
  }
  EXPECT_GT(UseOf(paths, 1).waiting_bytes, 0);
  paths.Reset(1);
  EXPECT_EQ(UseOf(paths, 1).acked_bytes, -1);
}

TEST(TcpPaths, CountConnectionsThatTheOtherNodeOpened) {
  Link link("127.0.0.3");
  TcpPaths paths;
  // This node is the listener, and the other one listens elsewhere on the host of the client.
  paths.Reset(link.address.port());
  SocketAddress other = *SocketAddress::OfIp("127.0.0.1");
  other.set_port(9);
  paths.Add(2, other);
  const char byte = 0;
  ASSERT_EQ(send(link.in, &byte, 1, 0), 1);
  const Deadline end = Deadline::After(absl::Seconds(20));
  while (UseOf(paths, 2).acked_bytes < 1 && !end.HasPassed()) {
  }
  EXPECT_GE(UseOf(paths, 2).acked_bytes, 1);
}

TEST(TcpPaths, LeaveOutNodesThatShareAnAddress) {
  Link one("127.0.0.4"), two("127.0.0.4");
  TcpPaths paths;
  paths.Reset(1);
  paths.Add(1, one.address);
  EXPECT_NE(UseOf(paths, 1).acked_bytes, -1);
  paths.Add(2, two.address);
  EXPECT_TRUE(paths.Uses().empty());
}

}  // namespace
}  // namespace agmm::transport
