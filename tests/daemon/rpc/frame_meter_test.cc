// Bounds on clients' use of HTTP/2.
#include "daemon/rpc/frame_meter.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/rpc/http2_frames.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecond_ns = 1'000'000'000;

// If its contents were read as frames, these would have many types.
std::string Frame(char type, size_t size = 4, char flags = 0, uint32_t stream = 1) {
  return FrameOf(type, std::string(size, kReset), flags, stream);
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
  Meter() { EXPECT_EQ(meter_.Received(kPreface, kSecond_ns), ""); }
  bool Accepts(const std::string& bytes, int64_t now_ns = kSecond_ns) {
    why_ = meter_.Received(bytes, now_ns);
    return why_.empty();
  }
  // Returns calls on streams that have not been used before.
  std::string Calls(int count, const std::string& fields = kIndexed) {
    std::string all;
    for (int i = 0; i < count; ++i, stream_ += 2) all += FrameOf(kHeaders, fields, 0, stream_);
    return all;
  }
  // Returns the ends of the answers to the last calls.
  std::string Ends(int count, char type = kHeaders, char flags = kEndStream) const {
    std::string all;
    for (int i = 1; i <= count; ++i) all += Frame(type, 4, flags, stream_ - 2 * i);
    return all;
  }
  int64_t Left(int64_t now_ns = kSecond_ns) { return host_->control.Left(now_ns); }

  static constexpr int64_t kMany = 1 << 30;
  HeldHeaders held_by_all_{.most_bytes = 200'000, .most_connections = 100};
  const std::shared_ptr<HostLoad> host_{new HostLoad{.control = {10, 5},
                                                     .headers = {kMany, kMany},
                                                     .max_open = 20,
                                                     .max_held = 80'000,
                                                     .held_by_all = &held_by_all_}};
  FrameMeter meter_{host_};
  uint32_t stream_ = 1;
  std::string why_;
};

TEST_F(Meter, ResetsBeyondTheHostsAllowanceAreRefused) {
  EXPECT_TRUE(Accepts(Many(10, Frame(kReset))));
  EXPECT_FALSE(Accepts(Frame(kReset)));
}

TEST_F(Meter, TheAllowanceRefillsWithTime) {
  EXPECT_FALSE(Accepts(Many(11, Frame(kReset))));
  EXPECT_EQ(Left(2 * kSecond_ns), 5);
  EXPECT_TRUE(Accepts(Many(5, Frame(kReset)), 2 * kSecond_ns));
  EXPECT_FALSE(Accepts(Frame(kReset), 2 * kSecond_ns));
  EXPECT_EQ(Left(20 * kSecond_ns), 10);
}

TEST_F(Meter, ConnectionsOfOneHostShareTheAllowance) {
  FrameMeter other(host_);
  EXPECT_EQ(host_->connections, 2);
  EXPECT_EQ(other.Received(std::string(kPreface) + Many(6, Frame(kReset)), kSecond_ns), "");
  EXPECT_FALSE(Accepts(Many(5, Frame(kReset))));
}

TEST_F(Meter, PingsAndSettingsCountUnlessTheyAreAnswers) {
  EXPECT_TRUE(Accepts(Many(100, Frame(kPing, 8, 1)) + Many(100, Frame(kSettings, 0, 1))));
  EXPECT_TRUE(Accepts(Many(5, Frame(kPing, 8)) + Many(5, Frame(kSettings, 6))));
  EXPECT_FALSE(Accepts(Frame(kPing, 8)));
}

TEST_F(Meter, ContentsAreNotMistakenForFrames) {
  EXPECT_TRUE(Accepts(Many(100, Frame(kData, 70'000))));
  EXPECT_TRUE(Accepts(Many(10, Frame(kReset))));
}

TEST_F(Meter, BytesMayArriveOneByOne) {
  for (char byte : Many(10, Frame(kData, 300) + Frame(kReset))) EXPECT_TRUE(Accepts({byte}));
  const std::string last = Frame(kReset);
  EXPECT_TRUE(Accepts(last.substr(0, 8)));
  EXPECT_FALSE(Accepts(last.substr(8, 1)));
}

TEST_F(Meter, CallsThatAreNotAnsweredHaveABound) {
  EXPECT_TRUE(Accepts(Calls(20)));
  EXPECT_FALSE(Accepts(Calls(1)));
  EXPECT_EQ(why_, "its host has 21 unanswered calls; the bound is 20");
}

TEST_F(Meter, AnsweredCallsAreNotBounded) {
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Accepts(Calls(20)));
    // The first headers and the contents of an answer do not end it.
    meter_.Sent(Ends(20, kHeaders, 0) + Ends(20, kData));
    ASSERT_EQ(host_->open, 20);
    meter_.Sent(Ends(19) + Ends(20, kReset, 0));
    ASSERT_EQ(host_->open, 0);
    ASSERT_EQ(host_->held, 0);
  }
  EXPECT_EQ(Left(), 10);
}

TEST_F(Meter, AnsweredCallsHaveARate) {
  for (int i = 0; i < 2'500; ++i) {
    ASSERT_TRUE(Accepts(Calls(20)));
    meter_.Sent(Ends(20));
  }
  EXPECT_FALSE(Accepts(Calls(1)));
}

// A client that closes its connection resets its calls.
TEST_F(Meter, CallsThatAConnectionLeavesBehindAreCharged) {
  EXPECT_TRUE(Accepts(Calls(20)));
  meter_.Sent(Ends(2));
  meter_.Close(kSecond_ns);
  EXPECT_EQ(host_->open, 0);
  EXPECT_EQ(host_->connections, 0);
  EXPECT_EQ(Left(), -5) << "no more than is refilled in a second";
  // The server reads bytes that arrived before.
  EXPECT_EQ(Left(10 * kSecond_ns), 10);
  EXPECT_TRUE(Accepts(Calls(10), 10 * kSecond_ns));
  EXPECT_FALSE(Accepts(Calls(1), 10 * kSecond_ns));
  EXPECT_EQ(host_->open, 0);
}

TEST_F(Meter, AHeaderBlockIsBoundedInAnyFrames) {
  constexpr int kFields = 200, kParts = 100;
  // Each variant uses its own connection: frames in parts, and parts of frames.
  for (size_t step : {size_t{1}, size_t{7}, size_t{1000}, size_t{1} << 20}) {
    for (int parts : {1, 2, kParts}) {
      FrameMeter meter(host_);
      std::string why = meter.Received(kPreface, kSecond_ns);
      const auto send = [&](const std::string& bytes) {
        for (size_t at = 0; at < bytes.size() && why.empty(); at += step)
          why = meter.Received(bytes.substr(at, step), kSecond_ns);
      };
      send(FrameOf(kHeaders, Many(kFields / parts, kIndexed)));
      for (int i = 1; i < parts; ++i) {
        host_->control.Charge(-1, kSecond_ns);  // CONTINUATION counts, too
        send(FrameOf(kContinuation, Many(kFields / parts, kIndexed)));
      }
      EXPECT_EQ(why, "");
      host_->control.Charge(-1, kSecond_ns);
      send(FrameOf(kContinuation, Many(kFields, kIndexed)));
      EXPECT_THAT(why, HasSubstr("the headers of a call have "));
      EXPECT_THAT(why, HasSubstr("the bound is 65536"));
    }
  }
  EXPECT_EQ(host_->held, 0);
  EXPECT_EQ(held_by_all_.bytes, 0);
}

TEST_F(Meter, TrailersAndContinuationsCountAsHeaders) {
  EXPECT_TRUE(Accepts(Calls(1)));
  // Trailers are held with their call, and do not count as a call.
  EXPECT_TRUE(Accepts(FrameOf(kHeaders, kNewName)));
  EXPECT_EQ(host_->open, 1);
  EXPECT_EQ(host_->held, 2 * kFieldBytes + kIndexed.size() + kNewName.size());
  EXPECT_EQ(Left(), 10);
  EXPECT_TRUE(Accepts(Many(10, FrameOf(kContinuation, ""))));
  EXPECT_FALSE(Accepts(FrameOf(kContinuation, "")));
}

// gRPC skips the priority, and reads padding as fields.
TEST_F(Meter, PaddingCountsAsFieldsAndPriorityDoesNot) {
  const std::string priority("\0\x7f\xff\xff\xff", 5);
  const std::string frame =
      FrameOf(kHeaders, priority + Many(200, kIndexed), kHasPriority | kPadded);
  for (char byte : frame) EXPECT_TRUE(Accepts({byte}));
  EXPECT_EQ(host_->held, 205 + 200 * kFieldBytes);
  EXPECT_FALSE(Accepts(FrameOf(kContinuation, Many(100, kIndexed), kHasPriority)));
  EXPECT_THAT(why_, HasSubstr("the headers of a call have "));
}

TEST_F(Meter, BlocksWhosePartsGrpcWouldMixAreRefused) {
  EXPECT_TRUE(Accepts(FrameOf(kHeaders, kNewName.substr(0, 5), 0, 2)));
  EXPECT_FALSE(Accepts(Calls(1)));
  EXPECT_EQ(why_, "a block of its headers ends within a field");
  FrameMeter other(host_);
  EXPECT_EQ(other.Received(kPreface + FrameOf(kHeaders, kIndexed, kHasPriority), kSecond_ns),
            "the priority in its headers is cut off");
}

TEST_F(Meter, HeadersOfUnansweredCallsHaveABound) {
  const std::string fields = Many(100, kIndexed);
  EXPECT_TRUE(Accepts(Calls(3, fields)));
  EXPECT_FALSE(Accepts(Calls(1, fields)));
  EXPECT_EQ(why_,
            "the headers of its host's unanswered calls have 102800 bytes, counting 256 for each "
            "field; the bound is 80000");
  meter_.Sent(Ends(4));
  EXPECT_TRUE(Accepts(Calls(3, fields)));
}

// A host with few calls is served while others hold everything that the server allows.
TEST_F(Meter, HeadersOfAllHostsHaveABound) {
  held_by_all_.bytes = held_by_all_.most_bytes + 1;
  EXPECT_TRUE(Accepts(Calls(19)));
  EXPECT_FALSE(Accepts(Calls(1)));
  EXPECT_THAT(why_, HasSubstr("have 5140 bytes, counting 256 for each field; the bound is 5000"));
}

TEST_F(Meter, HeadersOfAnyNumberOfHostsHaveABoundAndEachHostAShare) {
  std::vector<std::unique_ptr<FrameMeter>> hosts;
  for (int i = 0; i < held_by_all_.most_connections; ++i) {
    const std::shared_ptr<HostLoad> host{new HostLoad{.control = {kMany, kMany},
                                                      .headers = {kMany, kMany},
                                                      .max_open = kMany,
                                                      .max_held = 80'000,
                                                      .held_by_all = &held_by_all_}};
    hosts.push_back(std::make_unique<FrameMeter>(host));
    std::string why = hosts.back()->Received(kPreface, kSecond_ns);
    uint32_t stream = 1;
    for (; why.empty(); stream += 2)
      why = hosts.back()->Received(FrameOf(kHeaders, kIndexed, 0, stream), kSecond_ns);
    EXPECT_GT(host->held, held_by_all_.most_bytes / held_by_all_.most_connections);
  }
  // The last call of each host is refused.
  const int64_t refused = held_by_all_.most_connections * (1 + kFieldBytes);
  EXPECT_LE(held_by_all_.bytes - refused, 3 * held_by_all_.most_bytes);
}

TEST_F(Meter, HeadersHaveARate) {
  const std::shared_ptr<HostLoad> host{new HostLoad{.control = {10, 5},
                                                    .headers = {2'570, 257},
                                                    .max_open = 20,
                                                    .max_held = kMany,
                                                    .held_by_all = &held_by_all_}};
  FrameMeter meter(host);
  EXPECT_EQ(meter.Received(kPreface + Calls(10), kSecond_ns), "");
  EXPECT_EQ(meter.Received(Calls(2), 3 * kSecond_ns), "");
  EXPECT_THAT(meter.Received(Calls(1), 3 * kSecond_ns),
              HasSubstr("headers of more than 2570 bytes at once and 257 a second"));
}

TEST_F(Meter, ATrustedConnectionHasNoBound) {
  EXPECT_TRUE(Accepts(Calls(7)));
  meter_.Trust();
  EXPECT_EQ(host_->open, 0);
  EXPECT_TRUE(
      Accepts(Many(1000, Frame(kReset)) + Calls(60'000) + Calls(2, std::string(70'000, 'x'))));
  meter_.Close(kSecond_ns);
  EXPECT_EQ(Left(), 10);
}

}  // namespace
}  // namespace agmm
