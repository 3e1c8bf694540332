// Runs a task on a loop, and waits for it.
#pragma once

#include <utility>

#include "kernels/base/loop.h"
#include "tests/support/notification.h"

namespace agmm {

// Returns when the loop has run `task`, the tasks that it posts there, and the tasks that these
// post. Must not be called on the loop.
template <typename Task>
void RunOnLoop(Loop* loop, Task task) {
  Notification done;
  loop->Post([&] {
    task();
    loop->Post([&] { loop->Post([&] { done.Notify(); }); });
  });
  done.Wait();
}

}  // namespace agmm
