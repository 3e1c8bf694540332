#include "kernels/base/thread.h"

#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "gtest/gtest.h"

namespace agmm {
namespace {

TEST(Thread, OnlyTheOneThatLowersItsPriorityGoesBehindOthers) {
  const auto nice = [] { return getpriority(PRIO_PROCESS, 0); };
  const int before = nice();
  int lowered = 0, later = 0;
  std::thread([&] {
    LowerPriority();
    lowered = nice();
  }).join();
  std::thread([&] { later = nice(); }).join();
  EXPECT_EQ(lowered, std::max(before, 15));
  EXPECT_EQ(nice(), before);
  EXPECT_EQ(later, before);
}

}  // namespace
}  // namespace agmm
