// What waits for a stream while a write is in flight: merged, so that a burst travels in few
// messages.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

#include "agmm/v1/peer.pb.h"

namespace agmm {

inline bool Mergeable(const v1::SequencerMessage& message) { return !message.has_refusal(); }
// Whether what it says counts in its generation alone.
inline bool OfGeneration(const v1::SequencerMessage& message) {
  return message.commands_size() > 0;
}
inline void Merge(v1::SequencerMessage* into, v1::SequencerMessage* from) {
  for (v1::Command& command : *from->mutable_commands()) into->add_commands()->Swap(&command);
  for (v1::ForwardedOutcome& outcome : *from->mutable_outcomes())
    into->add_outcomes()->Swap(&outcome);
}
inline bool Mergeable(const v1::MemberMessage& message) { return !message.has_hello(); }
inline bool OfGeneration(const v1::MemberMessage& message) { return message.reports_size() > 0; }
inline void Merge(v1::MemberMessage* into, v1::MemberMessage* from) {
  for (v1::Report& report : *from->mutable_reports()) into->add_reports()->Swap(&report);
  for (v1::ForwardedJobs& jobs : *from->mutable_jobs()) into->add_jobs()->Swap(&jobs);
}

// Thread-safe. A message that Push or Next returned is to be written now, and stays until Next.
template <typename Message>
class OutQueue {
 public:
  // The message to write, or null while another is being written or after Close.
  const Message* Push(Message message) {
    std::lock_guard lock(mutex_);
    if (closed_) return nullptr;
    AddLocked(std::move(message));
    return Take();
  }
  // Waits for the next Push or Flush, or for the end of the write in flight.
  void Add(Message message) {
    std::lock_guard lock(mutex_);
    if (!closed_) AddLocked(std::move(message));
  }
  // As Push.
  const Message* Flush() {
    std::lock_guard lock(mutex_);
    return closed_ ? nullptr : Take();
  }

  // A message with a heartbeat alone; what waits anyhow takes it along.
  const Message* PushHeartbeat(v1::Heartbeat heartbeat) {
    std::lock_guard lock(mutex_);
    if (closed_) return nullptr;
    if (!waiting_.empty()) {
      Message& last = waiting_.back();
      // A usage that waits is still the last one where this beat brings none.
      if (Mergeable(last) && (heartbeat.has_usage() || !last.has_heartbeat()))
        *last.mutable_heartbeat() = std::move(heartbeat);
      return nullptr;
    }
    *waiting_.emplace_back().mutable_heartbeat() = std::move(heartbeat);
    last_bytes_ = kMergedBytes;
    return Take();
  }

  // The write in flight has ended: the next message, or null.
  const Message* Next() {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (closed_) return nullptr;
    return Take();
  }

  // What is being written; only while it is.
  const Message& current() const { return current_; }

  // Nothing is written any more; what waits is dropped. True the first time: then call Closed once
  // the stream has been cancelled, up to which it is not finished.
  bool Close() {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return false;
    waiting_.clear();
    cancelling_ = true;
    return true;
  }
  bool closed() {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  void Closed() {
    std::lock_guard lock(mutex_);
    cancelling_ = false;
  }

  // True once, when the queue is closed and no write is in flight: the stream is then to be
  // finished.
  bool TakeEnd() {
    std::lock_guard lock(mutex_);
    if (!closed_ || cancelling_ || writing_) return false;
    return !std::exchange(ended_, true);
  }

 private:
  static constexpr size_t kMergedBytes = 1 << 20;

  void AddLocked(Message message) {
    const size_t bytes = message.ByteSizeLong();
    Message* last = waiting_.empty() ? nullptr : &waiting_.back();
    if (last != nullptr && Mergeable(*last) && Mergeable(message) &&
        last_bytes_ + bytes <= kMergedBytes &&
        (last->generation() == message.generation() || !OfGeneration(*last) ||
         !OfGeneration(message))) {
      if (OfGeneration(message)) last->set_generation(message.generation());
      Merge(last, &message);
      last_bytes_ += bytes;
      return;
    }
    waiting_.push_back(std::move(message));
    last_bytes_ = bytes;
  }
  const Message* Take() {
    if (writing_ || waiting_.empty()) return nullptr;
    writing_ = true;
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    return &current_;
  }

  std::mutex mutex_;
  std::deque<Message> waiting_;
  size_t last_bytes_ = 0;  // of waiting_.back()
  Message current_;
  bool writing_ = false, closed_ = false, cancelling_ = false, ended_ = false;
};

}  // namespace agmm
