// Transfers in the background, on a few threads.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/library/background.h"

namespace agmm {

// Runs up to kAtOnce transfers at once, and further ones in the order in which they were added.
// Transfers that have begun may wait for one that has not: for a tensor that it frees, or in a
// callback for bytes that it moves. Another one therefore begins whenever none has moved a piece or
// ended for kStuck, so that a bound never becomes a deadlock. Thread-safe.
class TransferQueue {
 public:
  static constexpr int kAtOnce = 8;
  static constexpr std::chrono::milliseconds kStuck{500};

  // Starts its threads through `background`, whose Join waits for them.
  explicit TransferQueue(Background* background) : background_(background) {}

  // Calls `run` on a thread; or, if a request to `stop` or Close comes before it begins, calls
  // `drop` with CANCELLED at once. One of them is called, once. `purpose` names the thread in
  // errors. Errors: RESOURCE_EXHAUSTED if no thread can be started; then neither is called.
  absl::Status Add(absl::string_view purpose, std::stop_token stop, std::function<void()> run,
                   std::function<void(const absl::Status&)> drop);
  // Called after each piece that a transfer moves.
  void NoteProgress() { progress_.fetch_add(1, std::memory_order_relaxed); }
  // Drops the transfers that have not begun.
  void Close();

 private:
  struct Entry;
  struct OnStop {
    TransferQueue* queue;
    Entry* entry;
    void operator()() const;
  };
  struct Entry {
    std::function<void()> run;
    std::function<void(const absl::Status&)> drop;
    bool stopped = false;
    std::optional<std::stop_callback<OnStop>> on_stop;
  };
  using Queue = std::list<std::shared_ptr<Entry>>;

  // Runs transfers until none is queued.
  void Work();
  // Waits until none is queued, or transfers are stuck; then works.
  void Watch();
  // Starts Work, of which workers_ counts this thread already, or Watch, on a new thread.
  absl::Status StartWork(absl::string_view purpose);
  void StartWatch();
  // Returns the next transfer, and drops the request to stop it; null if there is none.
  std::shared_ptr<Entry> Take();
  // With the lock. Takes the entry out of the queue; null if it is not there.
  std::shared_ptr<Entry> Extract(const Entry* entry);

  Background* const background_;
  std::atomic<uint64_t> progress_ = 0;
  std::mutex mutex_;  // guards all below, and Entry::stopped
  std::condition_variable emptied_;
  Queue queue_;
  int workers_ = 0;
  bool watched_ = false;
};

}  // namespace agmm
