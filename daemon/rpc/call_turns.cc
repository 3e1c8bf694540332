#include "daemon/rpc/call_turns.h"

#include <cstdint>
#include <utility>

#include "daemon/link/owner_quota.h"
#include "kernels/base/clock.h"

namespace agmm {
namespace {

// The time for which calls run before the loop turns to other work.
constexpr int64_t kTurn_ns = 1'000'000;
// Owners that are kept without calls, because most of them call again.
constexpr size_t kKeptOwners = 64;

}  // namespace

void CallTurns::Post(const std::string& principal, Loop::Task call) {
  const std::string owner = OwnerOf(principal);
  {
    std::lock_guard lock(mutex_);
    const auto it = owners_.try_emplace(owner).first;
    if (it->second.empty()) turns_.push_back(it);
    it->second.push_back(std::move(call));
    if (std::exchange(running_, true)) return;
  }
  // Posts without the lock, because the loop that this wakes would otherwise wait for the lock at
  // once.
  loop_->Post([this] { Run(); });
}

void CallTurns::Run() {
  const int64_t end_ns = MonotonicNanos() + kTurn_ns;
  std::unique_lock lock(mutex_);
  do {
    const auto owner = turns_.front();
    turns_.pop_front();
    Loop::Task call = std::move(owner->second.front());
    owner->second.pop_front();
    if (!owner->second.empty()) {
      turns_.push_back(owner);
    } else if (owners_.size() > kKeptOwners) {
      owners_.erase(owner);
    }
    lock.unlock();
    call();
    call = nullptr;
    lock.lock();
  } while (!turns_.empty() && MonotonicNanos() < end_ns);
  running_ = !turns_.empty();
  if (running_) loop_->Post([this] { Run(); });
}

}  // namespace agmm
