// What a client may ask of HTTP/2.
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

class Meter : public ::testing::Test {
 protected:
  Meter() { EXPECT_TRUE(meter_.Read(kPreface, kSecond_ns)); }
  const std::shared_ptr<Allowance> control_ = std::make_shared<Allowance>(10, 5);
  FrameMeter meter_{control_};
};

TEST_F(Meter, AsManyResetsAsTheAllowanceHas) {
  EXPECT_TRUE(meter_.Read(Many(10, Frame(kReset)), kSecond_ns));
  EXPECT_FALSE(meter_.Read(Frame(kReset), kSecond_ns));
}

TEST_F(Meter, TheAllowanceComesBackWithTime) {
  EXPECT_FALSE(meter_.Read(Many(11, Frame(kReset)), kSecond_ns));
  EXPECT_EQ(control_->Left(2 * kSecond_ns), 5);
  EXPECT_TRUE(meter_.Read(Many(5, Frame(kReset)), 2 * kSecond_ns));
  EXPECT_FALSE(meter_.Read(Frame(kReset), 2 * kSecond_ns));
  EXPECT_EQ(control_->Left(20 * kSecond_ns), 10);
}

TEST_F(Meter, ConnectionsOfOneHostShareIt) {
  FrameMeter other(control_);
  EXPECT_TRUE(other.Read(std::string(kPreface) + Many(6, Frame(kReset)), kSecond_ns));
  EXPECT_FALSE(meter_.Read(Many(5, Frame(kReset)), kSecond_ns));
}

TEST_F(Meter, PingsAndSettingsCountUnlessTheServerAsked) {
  EXPECT_TRUE(
      meter_.Read(Many(100, Frame(kPing, 8, 1)) + Many(100, Frame(kSettings, 0, 1)), kSecond_ns));
  EXPECT_TRUE(meter_.Read(Many(5, Frame(kPing, 8)) + Many(5, Frame(kSettings, 6)), kSecond_ns));
  EXPECT_FALSE(meter_.Read(Frame(kPing, 8), kSecond_ns));
}

TEST_F(Meter, ContentsAreNoFrames) {
  EXPECT_TRUE(meter_.Read(Many(100, Frame(kData, 70'000)), kSecond_ns));
  EXPECT_TRUE(meter_.Read(Many(10, Frame(kReset)), kSecond_ns));
}

TEST_F(Meter, BytesMayArriveOneByOne) {
  for (char byte : Many(10, Frame(kData, 300) + Frame(kReset)))
    EXPECT_TRUE(meter_.Read({&byte, 1}, kSecond_ns));
  const std::string last = Frame(kReset);
  EXPECT_TRUE(meter_.Read(last.substr(0, 8), kSecond_ns));
  EXPECT_FALSE(meter_.Read(last.substr(8, 1), kSecond_ns));
}

TEST_F(Meter, CallsHaveABoundOfTheirOwn) {
  EXPECT_TRUE(meter_.Read(Many(50'000, Frame(kHeaders)), kSecond_ns));
  EXPECT_FALSE(meter_.Read(Frame(kHeaders), kSecond_ns));
  EXPECT_EQ(control_->Left(kSecond_ns), 10);
}

TEST_F(Meter, ATrustedConnectionHasNoBound) {
  meter_.Trust();
  EXPECT_TRUE(meter_.Read(Many(1000, Frame(kReset)) + Many(60'000, Frame(kHeaders)), kSecond_ns));
}

}  // namespace
}  // namespace agmm
