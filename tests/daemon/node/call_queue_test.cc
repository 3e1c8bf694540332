#include "daemon/node/call_queue.h"

#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace agmm {
namespace {

TEST(CallQueue, MakesCallsInOrderAndWithoutTheLock) {
  CallQueue queue;
  std::vector<int> made;
  queue.Do([&] {
    queue.AddLast([&] { made.push_back(4); });
    queue.Add([&] {
      made.push_back(1);
      // A call may change the state; the calls of that change run after those already queued.
      queue.Do([&] { queue.Add([&] { made.push_back(3); }); });
    });
    queue.Add([&] { made.push_back(2); });
  });
  EXPECT_EQ(made, (std::vector<int>{1, 2, 3, 4}));
}

TEST(CallQueue, CallsOfManyThreadsKeepTheOrderOfTheirChanges) {
  CallQueue queue;
  int changes = 0;
  std::vector<int> made;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i)
        queue.Do([&] { queue.Add([&made, change = changes++] { made.push_back(change); }); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int> all(4000);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(made, all);
}

}  // namespace
}  // namespace agmm
