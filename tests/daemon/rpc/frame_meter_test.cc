// Clients may ask only so much of HTTP/2.
#include "daemon/rpc/frame_meter.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace agmm {
namespace {

constexpr int64_t kSecond_ns = 1'000'000'000;
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum : char { kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6 };

std::string Frame(char type, size_t size = 4, char flags = 0) {
  std::string frame = {static_cast<char>(size >> 16),
                       static_cast<char>(size >> 8),
                       static_cast<char>(size),
                       type,
                       flags,
                       0,
                       0,
                       0,
                       1};
  // Frames of many types, if it were read as frames.
  return frame + std::string(size, kReset);
}

std::string Many(int count, const std::string& frame) {
  std::string all;
  for (int i = 0; i < count; ++i) all += frame;
  return all;
}

TEST(Allowance, RefillsAtTheRateOfTheTime) {
  Allowance allowance(100, 10);
  EXPECT_TRUE(allowance.Take(100, kSecond_ns));
  allowance.SetPerSecond(1, 2 * kSecond_ns);
  EXPECT_EQ(allowance.Left(2 * kSecond_ns), 10);
  EXPECT_EQ(allowance.Left(5 * kSecond_ns), 13);
}

class Meter : public ::testing::Test {
 protected:
  Meter() { EXPECT_TRUE(meter_.Received(kPreface, kSecond_ns)); }
  bool Says(const std::string& bytes, int64_t now_ns = kSecond_ns) {
    return meter_.Received(bytes, now_ns);
  }
  int64_t Left(int64_t now_ns = kSecond_ns) { return host_->control.Left(now_ns); }

  const std::shared_ptr<HostLoad> host_{new HostLoad{.control = {10, 5}, .max_open = 20}};
  FrameMeter meter_{host_};
};

TEST_F(Meter, AsManyResetsAsTheHostMayMake) {
  EXPECT_TRUE(Says(Many(10, Frame(kReset))));
  EXPECT_FALSE(Says(Frame(kReset)));
}

TEST_F(Meter, TheAllowanceComesBackWithTime) {
  EXPECT_FALSE(Says(Many(11, Frame(kReset))));
  EXPECT_EQ(Left(2 * kSecond_ns), 5);
  EXPECT_TRUE(Says(Many(5, Frame(kReset)), 2 * kSecond_ns));
  EXPECT_FALSE(Says(Frame(kReset), 2 * kSecond_ns));
  EXPECT_EQ(Left(20 * kSecond_ns), 10);
}

TEST_F(Meter, ConnectionsOfOneHostShareIt) {
  FrameMeter other(host_);
  EXPECT_EQ(host_->connections, 2);
  EXPECT_TRUE(other.Received(std::string(kPreface) + Many(6, Frame(kReset)), kSecond_ns));
  EXPECT_FALSE(Says(Many(5, Frame(kReset))));
}

TEST_F(Meter, PingsAndSettingsCountUnlessTheyAreAnswers) {
  EXPECT_TRUE(Says(Many(100, Frame(kPing, 8, 1)) + Many(100, Frame(kSettings, 0, 1))));
  EXPECT_TRUE(Says(Many(5, Frame(kPing, 8)) + Many(5, Frame(kSettings, 6))));
  EXPECT_FALSE(Says(Frame(kPing, 8)));
}

TEST_F(Meter, ContentsAreNoFrames) {
  EXPECT_TRUE(Says(Many(100, Frame(kData, 70'000))));
  EXPECT_TRUE(Says(Many(10, Frame(kReset))));
}

TEST_F(Meter, BytesMayArriveOneByOne) {
  for (char byte : Many(10, Frame(kData, 300) + Frame(kReset)))
    EXPECT_TRUE(meter_.Received({&byte, 1}, kSecond_ns));
  const std::string last = Frame(kReset);
  EXPECT_TRUE(Says(last.substr(0, 8)));
  EXPECT_FALSE(Says(last.substr(8, 1)));
}

TEST_F(Meter, CallsThatAreNotAnsweredHaveABound) {
  EXPECT_TRUE(Says(Many(20, Frame(kHeaders))));
  EXPECT_FALSE(Says(Frame(kHeaders)));
}

TEST_F(Meter, AnsweredCallsAreNotBounded) {
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Says(Many(20, Frame(kHeaders))));
    // The first headers and the contents of an answer do not end it.
    meter_.Sent(Many(20, Frame(kHeaders) + Frame(kData, 100)));
    ASSERT_EQ(host_->open, 20);
    meter_.Sent(Many(20, Frame(kHeaders, 4, 1)));
    ASSERT_EQ(host_->open, 0);
  }
  EXPECT_EQ(Left(), 10);
}

TEST_F(Meter, AnsweredCallsHaveARate) {
  for (int i = 0; i < 2'500; ++i) {
    ASSERT_TRUE(Says(Many(20, Frame(kHeaders))));
    meter_.Sent(Many(20, Frame(kHeaders, 4, 1)));
  }
  EXPECT_FALSE(Says(Frame(kHeaders)));
}

// A client that closes its connection resets its calls.
TEST_F(Meter, CallsThatAConnectionLeavesBehindAreCharged) {
  EXPECT_TRUE(Says(Many(20, Frame(kHeaders))));
  meter_.Sent(Many(2, Frame(kHeaders, 4, 1)));
  meter_.Close(kSecond_ns);
  EXPECT_EQ(host_->open, 0);
  EXPECT_EQ(host_->connections, 0);
  EXPECT_EQ(Left(), -5) << "no more than comes back in a second";
  // The server reads what had arrived before.
  EXPECT_EQ(Left(10 * kSecond_ns), 10);
  EXPECT_TRUE(Says(Many(10, Frame(kHeaders)), 10 * kSecond_ns));
  EXPECT_FALSE(Says(Frame(kHeaders), 10 * kSecond_ns));
  EXPECT_EQ(host_->open, 0);
}

TEST_F(Meter, ATrustedConnectionHasNoBound) {
  EXPECT_TRUE(Says(Many(7, Frame(kHeaders))));
  meter_.Trust();
  EXPECT_EQ(host_->open, 0);
  EXPECT_TRUE(Says(Many(1000, Frame(kReset)) + Many(60'000, Frame(kHeaders))));
  meter_.Close(kSecond_ns);
  EXPECT_EQ(Left(), 10);
}

}  // namespace
}  // namespace agmm
