// Heartbeats as UDP datagrams.
#include "daemon/link/udp_heartbeats.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/link/protocol.h"
#include "daemon/rpc/listen.h"
#include "kernels/base/clock.h"
#include "kernels/base/socket_address.h"
#include "tests/support/logged.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

// A bound UDP socket of loopback.
int Bound(std::string* address) {
  const auto sockets = BindUdp("127.0.0.1:0");
  EXPECT_TRUE(sockets.ok()) << sockets.status();
  SocketAddress where;
  getsockname(sockets->front(), where.get(), &where.size);
  *address = where.ToString();
  return sockets->front();
}

// Returns the next datagram; empty if none comes.
std::string Receive(int fd, SocketAddress* from) {
  char bytes[256];
  ssize_t size = -1;
  EXPECT_TRUE(Eventually([&] {
    size = recvfrom(fd, bytes, sizeof(bytes), MSG_DONTWAIT, from->get(), &from->size);
    return size >= 0;
  }));
  return size < 0 ? "" : std::string(bytes, size);
}

TEST(UdpHeartbeats, BothEndsReceiveThemWhileTheStreamLasts) {
  std::string address;
  const auto answers = *UdpHeartbeats::Answer({Bound(&address)});
  const auto asks = *UdpHeartbeats::Ask(address);
  for (UdpHeartbeats* end : {answers.get(), asks.get()}) {
    EXPECT_EQ(end->heard_ns("key"), 0);
    end->Begin("key");
  }
  for (UdpHeartbeats* end : {answers.get(), asks.get()}) {
    EXPECT_TRUE(Eventually([&] { return end->heard_ns("key") > 0; }));
    const int64_t first_ns = end->heard_ns("key");
    EXPECT_TRUE(Eventually([&] { return end->heard_ns("key") > first_ns; })) << "only once";
  }
  asks->End("key");
  EXPECT_EQ(asks->heard_ns("key"), 0);
}

TEST(UdpHeartbeats, DatagramsWithAStrangersKeyAreIgnored) {
  std::string address;
  const auto answers = *UdpHeartbeats::Answer({Bound(&address)});
  const auto stranger = *UdpHeartbeats::Ask(address), member = *UdpHeartbeats::Ask(address);
  answers->Begin("key");
  stranger->Begin("other");
  member->Begin("key");
  EXPECT_TRUE(Eventually([&] { return member->heard_ns("key") > 0; }));
  EXPECT_EQ(stranger->heard_ns("other"), 0);
}

TEST(UdpHeartbeats, CopiesAndReturnedQuestionsAreIgnored) {
  std::string address;
  const int wire = Bound(&address);
  const auto asks = *UdpHeartbeats::Ask(address);
  asks->Begin("key");
  SocketAddress from;
  const std::string question = Receive(wire, &from);
  ASSERT_FALSE(question.empty());
  // The question returned as its answer, too short, and too long.
  for (const std::string& bytes : {question, question.substr(1), question + "x", std::string()})
    sendto(wire, bytes.data(), bytes.size(), 0, from.get(), from.size);
  // The next question is sent after these arrived.
  EXPECT_FALSE(Receive(wire, &from).empty());
  EXPECT_EQ(asks->heard_ns("key"), 0);

  std::string second, answering;
  const int other_wire = Bound(&second);
  const auto answers = *UdpHeartbeats::Answer({Bound(&answering)});
  answers->Begin("key");
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(std::stoi(answering.substr(answering.rfind(':') + 1)));
  const auto say = [&](const std::string& bytes) {
    sendto(other_wire, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof(to));
  };
  say(question);
  const std::string answer = Receive(other_wire, &from);
  EXPECT_EQ(answer.size(), question.size());
  EXPECT_NE(answer, question);
  EXPECT_GT(answers->heard_ns("key"), 0);
  // A copy gets no answer, but the asking end's next question does.
  std::string next;
  do {
    next = Receive(wire, &from);
  } while (next == question);
  say(question);
  say(next);
  constexpr size_t kNumberAt = 24, kNumberBytes = 8;
  EXPECT_EQ(Receive(other_wire, &from).substr(kNumberAt, kNumberBytes),
            next.substr(kNumberAt, kNumberBytes));
  for (int fd : {wire, other_wire}) close(fd);
}

TEST(UdpHeartbeats, AWarningNamesTheAddressAndHowItAnswers) {
  std::string silent, refuses;
  const int wire = Bound(&silent);
  close(Bound(&refuses));
  for (const auto& [address, how] :
       {std::pair(silent, " did not answer"), std::pair(refuses, " refused")}) {
    Logged logged;
    const auto asks = *UdpHeartbeats::Ask(address, /*patience=*/1);
    asks->Begin("key");
    EXPECT_TRUE(Eventually([&] { return !logged.text().empty(); }));
    EXPECT_THAT(logged.text(),
                testing::HasSubstr(absl::StrCat("from ", address, ": ", address, how)));
  }
  close(wire);
}

TEST(UdpHeartbeats, ANodeIsSilentOnlyIfStreamAndDatagramsAre) {
  const int64_t silence = absl::ToInt64Nanoseconds(kSilenceLimit);
  const int64_t stream = absl::ToInt64Nanoseconds(kStreamSilenceLimit);
  const int64_t now = 100 * stream;
  EXPECT_FALSE(IsSilent(now, now - silence, 0));
  EXPECT_TRUE(IsSilent(now, now - silence - 1, 0));
  EXPECT_TRUE(IsSilent(now, now - silence - 1, now - silence - 1));
  EXPECT_FALSE(IsSilent(now, now - silence - 1, now - silence));
  EXPECT_FALSE(IsSilent(now, now - stream, now));
  EXPECT_TRUE(IsSilent(now, now - stream - 1, now)) << "its stream may hang forever";
  EXPECT_EQ(SilenceOf(now, now - silence - 1), "no message for 2.5s");
  EXPECT_EQ(SilenceOf(now, now - stream - 1), "no message for 10s");
}

}  // namespace
}  // namespace agmm
