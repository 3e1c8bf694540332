#include "kernels/cuda/launch_group.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"

namespace agmm {
namespace {

// The groups that are open, and the calls that may block, of this process.
class Gate {
 public:
  static Gate& Get() {
    static Gate gate;
    return gate;
  }

  // Returns false while there are calls that may block; then the group is woken after them.
  bool Open(const std::shared_ptr<LaunchGroup>& group) {
    std::lock_guard lock(mutex_);
    if (quiet_ > 0 || (waiting_ > 0 && !next_.contains(group))) {
      refused_.insert(group);
      return false;
    }
    next_.erase(group);
    ++open_;
    return true;
  }
  // The group will not open.
  void Forget(const std::shared_ptr<LaunchGroup>& group) {
    std::lock_guard lock(mutex_);
    refused_.erase(group);
    next_.erase(group);
    changed_.notify_all();
  }
  void Close() {
    std::lock_guard lock(mutex_);
    if (--open_ > 0) return;
    gave_up_ = false;
    changed_.notify_all();
  }

  // Begins a call that may block. Returns the number of groups that are open, or come first, after
  // the limit.
  int Begin(absl::Duration limit) {
    std::unique_lock lock(mutex_);
    if (gave_up_) limit = std::min(limit, absl::Seconds(1));
    ++waiting_;
    // Groups and such calls take turns.
    changed_.wait_for(lock, absl::ToChronoNanoseconds(limit), [this] {
      return open_ == 0 && next_.empty() && (quiet_ == 0 || refused_.empty());
    });
    --waiting_;
    ++quiet_;
    const int left = open_ + static_cast<int>(next_.size());
    gave_up_ = left > 0;
    return left;
  }
  void End() {
    std::set<std::shared_ptr<LaunchGroup>> refused;
    {
      std::lock_guard lock(mutex_);
      if (--quiet_ > 0) return;
      refused.swap(refused_);
      next_.insert(refused.begin(), refused.end());
      changed_.notify_all();
    }
    for (const std::shared_ptr<LaunchGroup>& group : refused) group->Wake();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;                 // groups
  int waiting_ = 0, quiet_ = 0;  // calls that may block: before and after the groups have closed
  bool gave_up_ = false;         // since a call waited for its whole limit, groups have been open
  // Groups that could not open beside these calls, and those of them whose turn it is.
  std::set<std::shared_ptr<LaunchGroup>> refused_, next_;
};

}  // namespace

void LaunchGroup::Join(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  members_.push_back(std::move(wake));
}

void LaunchGroup::Arrive(uint64_t epoch, int count) {
  {
    std::lock_guard lock(mutex_);
    if (epoch_ != epoch) arrived_ = submitted_ = over_ = 0;
    epoch_ = epoch;
    count_ = count;
    ++arrived_;
    if (!TryToOpen()) return;
  }
  Wake();
}

void LaunchGroup::Withdraw(uint64_t epoch) {
  std::lock_guard lock(mutex_);
  if (open_ || closed_ >= epoch) return;
  withdrawn_ = true;
  Gate::Get().Forget(shared_from_this());
}

bool LaunchGroup::TryToOpen() {
  if (!open_ && !withdrawn_ && closed_ < epoch_ && arrived_ == count_)
    open_ = Gate::Get().Open(shared_from_this());
  return open_;
}

bool LaunchGroup::IsOpen(uint64_t epoch) {
  std::lock_guard lock(mutex_);
  return epoch == epoch_ && TryToOpen();
}

void LaunchGroup::Submitted(uint64_t epoch) {
  std::unique_lock lock(mutex_);
  if (epoch != epoch_ || !open_ || ++submitted_ < count_) return;
  Close();
  lock.unlock();
  Wake();
}

void LaunchGroup::Over(uint64_t epoch) {
  std::lock_guard lock(mutex_);
  if (epoch == epoch_ && open_ && ++over_ == count_) Close();
}

void LaunchGroup::Close() {
  open_ = false;
  closed_ = epoch_;
  Gate::Get().Close();
}

bool LaunchGroup::HaveAllSubmitted(uint64_t epoch) const {
  std::lock_guard lock(mutex_);
  return closed_ >= epoch;
}

void LaunchGroup::Wake() {
  std::vector<std::function<void()>> members;
  {
    std::lock_guard lock(mutex_);
    members = members_;
  }
  for (const std::function<void()>& wake : members) wake();
}

QuietLaunches::QuietLaunches(absl::Duration limit) {
  if (const int open = Gate::Get().Begin(limit); open > 0) {
    status_ = absl::UnavailableError(
        absl::StrFormat("%d groups of kernels that wait for each other were not all submitted "
                        "within %.0f s; cancel "
                        "their jobs, and restart the daemon if these do not end",
                        open, absl::ToDoubleSeconds(limit)));
  }
}

QuietLaunches::~QuietLaunches() { Gate::Get().End(); }

}  // namespace agmm
