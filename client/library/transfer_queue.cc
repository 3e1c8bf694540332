#include "client/library/transfer_queue.h"

#include <algorithm>
#include <utility>

#include "client/connect/caller.h"
#include "kernels/base/status.h"

namespace agmm {

absl::Status TransferQueue::Add(absl::string_view purpose, std::stop_token stop,
                                std::function<void()> run,
                                std::function<void(const absl::Status&)> drop) {
  const auto entry = std::make_shared<Entry>();
  entry->run = std::move(run);
  entry->drop = std::move(drop);
  // Not with the lock, because the callback of a request that has been made runs here.
  entry->on_stop.emplace(std::move(stop), OnStop{this, entry.get()});
  bool start = false, watch = false;
  {
    std::unique_lock lock(mutex_);
    if (entry->stopped) {
      lock.unlock();
      entry->drop(StoppedError());
      return absl::OkStatus();
    }
    queue_.push_back(entry);
    start = workers_ < kAtOnce;
    workers_ += start;
    watch = !start && !std::exchange(watched_, true);
  }
  if (watch) StartWatch();
  if (!start) return absl::OkStatus();
  const absl::Status started = StartWork(purpose);
  if (started.ok()) return absl::OkStatus();
  {
    std::lock_guard lock(mutex_);
    if (Extract(entry.get()) == nullptr) return absl::OkStatus();  // another thread has it
  }
  entry->on_stop.reset();
  return started;
}

void TransferQueue::Close() {
  Queue dropped;
  {
    std::lock_guard lock(mutex_);
    dropped.swap(queue_);
    emptied_.notify_all();
  }
  for (const std::shared_ptr<Entry>& entry : dropped) {
    entry->on_stop.reset();
    entry->drop(absl::CancelledError("cancelled"));
  }
}

void TransferQueue::OnStop::operator()() const {
  std::shared_ptr<Entry> dropped;
  {
    std::lock_guard lock(queue->mutex_);
    entry->stopped = true;
    dropped = queue->Extract(entry);
  }
  // Last, because it destroys this object.
  if (dropped != nullptr) dropped->drop(StoppedError());
}

std::shared_ptr<TransferQueue::Entry> TransferQueue::Extract(const Entry* entry) {
  const auto found = std::find_if(queue_.begin(), queue_.end(),
                                  [&](const auto& each) { return each.get() == entry; });
  if (found == queue_.end()) return nullptr;
  std::shared_ptr<Entry> taken = std::move(*found);
  queue_.erase(found);
  if (queue_.empty()) emptied_.notify_all();
  return taken;
}

std::shared_ptr<TransferQueue::Entry> TransferQueue::Take() {
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      --workers_;
      return nullptr;
    }
    entry = Extract(queue_.front().get());
  }
  // Not with the lock, because it waits for a callback in progress. From here on, the transfer
  // itself heeds the request.
  entry->on_stop.reset();
  return entry;
}

void TransferQueue::Work() {
  while (const std::shared_ptr<Entry> entry = Take()) {
    entry->run();
    NoteProgress();
  }
}

void TransferQueue::Watch() {
  bool more = false;
  {
    std::unique_lock lock(mutex_);
    uint64_t seen = 0;
    do {
      seen = progress_;
      emptied_.wait_for(lock, kStuck, [this] { return queue_.empty(); });
    } while (!queue_.empty() && seen != progress_);
    more = watched_ = queue_.size() > 1;
    if (queue_.empty()) return;
    ++workers_;
  }
  if (more) StartWatch();
  Work();
}

absl::Status TransferQueue::StartWork(absl::string_view purpose) {
  absl::Status started = background_->Start(purpose, [this] { Work(); });
  if (started.ok()) return started;
  std::lock_guard lock(mutex_);
  --workers_;
  return started;
}

void TransferQueue::StartWatch() {
  if (background_->Start("transfers that wait", [this] { Watch(); }).ok()) return;
  std::lock_guard lock(mutex_);
  watched_ = false;
}

}  // namespace agmm
