// The thread sanitizer sees races of the host despite the model's lock (tests/tsan.supp).
#include <atomic>
#include <thread>

#include "tests/model/model_fixture.h"

namespace {

using LockDeathTest = ModelTest;

TEST_F(LockDeathTest, CallsDoNotOrderTheirCallers) {
#ifndef __SANITIZE_THREAD__
  GTEST_SKIP() << "for the thread sanitizer";
#endif
  const auto run = [&] {
    Start("gpus=1");
    int counts[2], shared = 0;
    std::atomic<bool> called = false;
    std::thread other([&] {
      shared = 1;
      cu.cuDeviceGetCount(&counts[0]);
      called.store(true, std::memory_order_relaxed);
    });
    while (!called.load(std::memory_order_relaxed)) std::this_thread::yield();
    cu.cuDeviceGetCount(&counts[1]);
    shared = 2;
    other.join();
  };
  EXPECT_DEATH(run(), "data race");
}

}  // namespace
