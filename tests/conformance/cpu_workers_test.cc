// Calls to the workers of a CPU device while one of them polls the transport that it drives.
#include "kernels/cpu/cpu_workers.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "kernels/base/deadline.h"
#include "kernels/device/progress_engine.h"
#include "tests/support/notification.h"
#include "tests/support/patience.h"

namespace agmm::test {
namespace {

// A transport without events. During its first Poll, another thread makes `call`, which waits for
// the worker.
class IdleTransport final : public ProgressEngine {
 public:
  IdleTransport(std::shared_ptr<Monitor> monitor, std::function<void()> call)
      : monitor_(std::move(monitor)), call_(std::move(call)) {}
  ~IdleTransport() override {
    if (caller_.joinable()) caller_.join();
  }

  // Waits for the end of the call; returns false if it does not end.
  bool CallReturns() { return returned_.WaitFor(kPatience); }

  bool Drive(absl::FunctionRef<bool()> done, Deadline, absl::Duration) override {
    if (!caller_.joinable()) {  // wakes itself, so that a Poll follows
      std::lock_guard lock(monitor_->mutex);
      monitor_->WakeAll();
    }
    std::unique_lock lock(mutex_);
    woken_.wait(lock, done);
    return true;
  }
  bool Poll() override {
    if (caller_.joinable()) return true;
    {
      // Wake runs in the call, as it would if the worker drove.
      std::lock_guard lock(monitor_->mutex);
      monitor_->driven = this;
      monitor_->stirred = false;
    }
    caller_ = std::thread([this] {
      call_();
      returned_.Notify();
    });
    {
      std::unique_lock lock(mutex_);
      EXPECT_TRUE(woken_.wait_for(lock, kPatienceMs, [this] { return monitor_->stirred.load(); }));
    }
    // The call has this lock from before Wake until it waits.
    std::lock_guard lock(monitor_->mutex);
    monitor_->driven = nullptr;
    return true;
  }
  void Leave() override {}
  void Wake() override {
    std::lock_guard lock(mutex_);
    woken_.notify_all();
  }

 private:
  const std::shared_ptr<Monitor> monitor_;
  const std::function<void()> call_;
  Notification returned_;
  std::thread caller_;  // used on the worker
  std::mutex mutex_;
  std::condition_variable woken_;
};

TEST(CpuWorkers, ALoanThatEndsDuringAPollEnds) {
  const auto monitor = std::make_shared<Monitor>();
  CpuWorkers workers(monitor, 1);
  IdleTransport transport(monitor, [&] { workers.Lend(nullptr); });
  workers.Lend(&transport);
  EXPECT_TRUE(transport.CallReturns());
  workers.Lend(nullptr);
}

TEST(CpuWorkers, ScratchThatIsReservedDuringAPollIsTaken) {
  const auto monitor = std::make_shared<Monitor>();
  CpuWorkers workers(monitor, 1);
  IdleTransport transport(monitor, [&] { EXPECT_TRUE(workers.Reserve({.a = 64}).ok()); });
  workers.Lend(&transport);
  EXPECT_TRUE(transport.CallReturns());
  workers.Lend(nullptr);
}

}  // namespace
}  // namespace agmm::test
