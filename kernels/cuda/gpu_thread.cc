#include "kernels/cuda/gpu_thread.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"
#include "kernels/base/thread.h"

namespace agmm {
namespace {

// Polling time after the last progress without sleep, and the naps after it. A step of a large
// product takes longer than both, one of a small product shorter.
constexpr int64_t kPollNs = 50'000;
constexpr std::chrono::microseconds kNap(20);

}  // namespace

absl::StatusOr<std::unique_ptr<GpuThread>> GpuThread::Start(const Driver& driver, CUcontext context,
                                                            const std::string& where) {
  std::unique_ptr<GpuThread> thread(new GpuThread);
  AGMM_ASSIGN_OR_RETURN(thread->thread_, StartThread(absl::StrCat("the work of ", where),
                                                     [self = thread.get(), &driver, context] {
                                                       const InContext here(driver, context);
                                                       self->Work();
                                                     }));
  return thread;
}

GpuThread::~GpuThread() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  thread_.join();
}

void GpuThread::Add(GpuTenant* tenant) {
  std::lock_guard lock(mutex_);
  tenants_.push_back(tenant);
  woken_ = true;
  wake_.notify_all();
}

void GpuThread::Remove(GpuTenant* tenant) {
  std::unique_lock lock(mutex_);
  std::erase(tenants_, tenant);
  const uint64_t pass = pass_;
  passed_.wait(lock, [&] { return !turning_ || pass_ != pass; });
}

int GpuThread::tenant_count() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(tenants_.size());
}

void GpuThread::Wake() {
  if (woken_.exchange(true)) return;
  std::lock_guard lock(mutex_);
  wake_.notify_all();
}

void GpuThread::Work() {
  int64_t progressed_ns = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    woken_.exchange(false);  // acquires what was raised before Wake
    ++pass_;
    turning_ = true;
    const std::vector<GpuTenant*> tenants = tenants_;
    lock.unlock();
    GpuTenant::Turn all;
    for (GpuTenant* tenant : tenants) {
      const GpuTenant::Turn turn = tenant->TakeTurn();
      all.progressed |= turn.progressed;
      all.in_hand |= turn.in_hand;
      all.next = std::min(all.next, turn.next);
    }
    const int64_t now_ns = MonotonicNanos();
    if (all.progressed) progressed_ns = now_ns;
    const bool polls = all.in_hand && now_ns - progressed_ns < kPollNs;
    if (polls && !all.progressed) std::this_thread::yield();
    lock.lock();
    turning_ = false;
    passed_.notify_all();
    if (all.progressed || polls) continue;
    const auto ready = [this] { return woken_ || stopping_; };
    if (all.in_hand) {
      wake_.wait_for(lock, kNap, ready);
    } else {
      wake_.wait_until(lock, all.next.time_point(), ready);
    }
  }
}

void GpuInbox::Post(std::function<void()> request) {
  std::lock_guard lock(mutex_);
  requests_.push_back(std::move(request));
  // With the lock held: the tenant may be destroyed, and the thread end, once it has the request.
  thread_.Wake();
}

void GpuInbox::Obey() {
  std::vector<std::function<void()>> requests;
  {
    std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (const std::function<void()>& request : requests) request();
}

}  // namespace agmm
