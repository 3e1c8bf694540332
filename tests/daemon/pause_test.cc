// Pauses of a daemon itself.
#include "daemon/link/pause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000'000;

TEST(PauseWatch, ATickThatComesLateIsAPauseForAFewSeconds) {
  PauseWatch pauses("node b (10.0.0.2:7101)");
  EXPECT_THAT(pauses.Recent(100 * kSecond), IsEmpty());
  pauses.Expect(100 * kSecond);
  pauses.Tick(100 * kSecond, 104 * kSecond);
  pauses.Expect(105 * kSecond);
  EXPECT_EQ(pauses.Recent(104 * kSecond),
            "node b (10.0.0.2:7101) was paused for 4.0 s (its process was stopped, or its host was "
            "suspended or overloaded)");
  pauses.Tick(105 * kSecond, 105 * kSecond);
  EXPECT_THAT(pauses.Recent(108 * kSecond), HasSubstr("4.0 s"));
  EXPECT_THAT(pauses.Recent(109 * kSecond), IsEmpty());
}

TEST(PauseWatch, APauseIsKnownBeforeItsLateTickComes) {
  PauseWatch pauses("node b");
  pauses.Expect(100 * kSecond);
  EXPECT_THAT(pauses.Recent(101 * kSecond), IsEmpty()) << "too short to be given up for";
  EXPECT_THAT(pauses.Recent(103 * kSecond), HasSubstr("node b was paused for 3.0 s"));
}

TEST(PauseWatch, ADaemonWithoutStreamsExpectsNoTick) {
  PauseWatch pauses("node b");
  pauses.Expect(100 * kSecond);
  pauses.Tick(100 * kSecond, 100 * kSecond);
  EXPECT_THAT(pauses.Recent(900 * kSecond), IsEmpty());
}

}  // namespace
}  // namespace agmm
