// The outcomes of a dial, in the words of the warnings.
#include "daemon/link/dial.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/socket_address.h"

namespace agmm {
namespace {

using testing::HasSubstr;

// A TCP socket at a free port of 127.0.0.1.
struct Port {
  Port() {
    at = *SocketAddress::OfIp("127.0.0.1");
    EXPECT_EQ(bind(fd, at.get(), at.size), 0);
    getsockname(fd, at.get(), &at.size);
  }
  ~Port() { close(fd); }
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SocketAddress at;
};

// Connects until the queue of `port`, which never accepts, is full: the kernel then drops further
// attempts. Returns the connections.
std::vector<std::unique_ptr<Dial>> Fill(const Port& port) {
  std::vector<std::unique_ptr<Dial>> dials;
  do {
    dials.push_back(std::make_unique<Dial>(std::vector{port.at}));
  } while (dials.back()->Answers(absl::Milliseconds(500)).find("accepted") != std::string::npos);
  return dials;
}

TEST(Dial, ReportsTheAnswerOfEachAddress) {
  Port accepts, refuses, silent;
  ASSERT_EQ(listen(accepts.fd, 1), 0);
  ASSERT_EQ(listen(silent.fd, 0), 0);
  const auto filled = Fill(silent);
  SocketAddress multicast = *SocketAddress::OfIp("224.0.0.1");
  multicast.set_port(7100);
  Dial dial({accepts.at, refuses.at, silent.at, multicast});
  EXPECT_EQ(
      dial.Answers(absl::Seconds(1)),
      absl::StrCat(accepts.at.ToString(), " accepted a connection, so no firewall is in the way; ",
                   refuses.at.ToString(),
                   " refused (agmmd does not run there, or a firewall rejects it); ",
                   silent.at.ToString(),
                   " did not answer (a firewall drops the packets, or the host is down); "
                   "224.0.0.1:7100 is unreachable (Network is unreachable)"));
}

TEST(Dialer, NamesTheAddressesOfAName) {
  const Port refuses;
  std::string said;
  {
    Dialer dialer;
    dialer.Try(absl::StrCat("localhost:", refuses.at.port()),
               [&](const std::string& answers) { said = answers; });
  }
  EXPECT_THAT(said, HasSubstr(refuses.at.ToString() + " refused"));
}

}  // namespace
}  // namespace agmm
