// Ends of streaming calls: a stream owns itself, sends in order and ends once. On the server it can
// notice a client that has stopped without closing its connection (WatchSilence).
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "daemon/link/grpc_context.h"
#include "daemon/link/parsed.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/loop.h"
#include "proto/convert/grpc_call.h"

namespace agmm {

// A client that neither sends nor takes a message for this long loses its call.
inline constexpr absl::Duration kClientSilenceLimit = absl::Seconds(60);

// One end of a call, which sends messages of type Out. Thread-safe. Hooks run without the lock, on
// any thread; a derived class may call everything here with its own lock held. A shared_ptr keeps
// the object, not the call: once the call is done, nothing here has an effect.
template <typename Reactor, typename Out>
class Stream : public Reactor, public std::enable_shared_from_this<Stream<Reactor, Out>> {
 public:
  // Ends this end with `status`: after the waiting messages if it is OK, else without them. The
  // first End counts.
  void End(absl::Status status) {
    const auto self = this->shared_from_this();
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kOpen) return;
    phase_ = Phase::kEnding;
    status_ = std::move(status);
    if (!status_.ok()) unsent_.clear();
    WriteOrFinish();
  }

 protected:
  // Bound of a merged message.
  static constexpr size_t kMergedBytes = 1 << 20;
  enum class Phase { kOpen, kEnding, kFinished };  // kFinished: gRPC may finish the call

  // Called when `sent` has been written, so that its memory can be reused.
  virtual void OnSent(Out /*sent*/) {}
  // Called when the other end left or is silent, or the daemon is stopping; may run more than once.
  virtual void OnBroken(absl::Status why) { End(std::move(why)); }
  // Appends `message` to `last`, which waits to be sent; returns false if they must travel
  // separately. Called with the lock held.
  virtual bool Merge(Out* /*last*/, Out* /*message*/) { return false; }
  // Lets gRPC finish the call, because everything has been written. Called with the lock held.
  virtual void LetGo(const absl::Status& status) = 0;

  // Sends `message` after the waiting ones. Has no effect after End.
  void Send(Out message) {
    Queue(std::move(message));
    Flush();
  }
  // Sends `message` with the next Send or Flush, or after the write in progress.
  void Queue(Out message) {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kOpen) return;
    const size_t bytes = message.ByteSizeLong();
    if (!unsent_.empty() && last_bytes_ + bytes <= kMergedBytes &&
        Merge(&unsent_.back(), &message)) {
      last_bytes_ += bytes;
      return;
    }
    unsent_.push_back(std::move(message));
    last_bytes_ = bytes;
  }
  void Flush() {
    std::lock_guard lock(mutex_);
    WriteOrFinish();
  }
  bool sending() const {
    std::lock_guard lock(mutex_);
    return writing_;
  }
  bool open() const {
    std::lock_guard lock(mutex_);
    return phase_ == Phase::kOpen;
  }

  // Keeps this alive until Release, which OnDone calls.
  void Own() { self_ = this->shared_from_this(); }
  std::shared_ptr<Stream> Release() { return std::move(self_); }
  // Restarts the time of silence.
  void Touch() { heard_ns_.store(MonotonicNanos(), std::memory_order_relaxed); }
  int64_t heard_ns() const { return heard_ns_.load(std::memory_order_relaxed); }

  template <typename Derived>
  std::shared_ptr<Derived> Self() {
    return std::static_pointer_cast<Derived>(this->shared_from_this());
  }

  mutable std::mutex mutex_;  // guards all below
  Phase phase_ = Phase::kOpen;
  absl::Status status_;  // from kEnding on

 private:
  void OnWriteDone(bool ok) final {
    Touch();
    Out sent;
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      sent = std::move(current_);
      if (!ok) unsent_.clear();
      WriteOrFinish();
    }
    if (!ok) return OnBroken(absl::CancelledError("the client left"));
    OnSent(std::move(sent));
  }

  // Requires the lock.
  void WriteOrFinish() {
    if (writing_ || phase_ == Phase::kFinished) return;
    if (!unsent_.empty()) {
      writing_ = true;
      current_ = std::move(unsent_.front());
      unsent_.pop_front();
      Touch();
      this->StartWrite(&current_);
    } else if (phase_ == Phase::kEnding) {
      phase_ = Phase::kFinished;
      LetGo(status_);
    }
  }

  std::deque<Out> unsent_;
  size_t last_bytes_ = 0;  // of unsent_.back()
  Out current_;            // gRPC's while writing_
  bool writing_ = false;
  std::atomic<int64_t> heard_ns_{0};  // without the lock
  std::shared_ptr<Stream> self_;      // likewise; until OnDone
};

// The server's end of a call. Made by StartStream.
template <typename Reactor, typename Out>
class ServerStream : public Stream<Reactor, Out> {
 public:
  // Takes the call over from gRPC. To be called once.
  void Start() {
    this->Own();
    OnStart();
  }

 protected:
  explicit ServerStream(grpc::CallbackServerContext* context)
      : call_(CallContextOf(context)), context_(context) {}

  // Runs once gRPC knows the stream: sends, reads and ends from here on.
  virtual void OnStart() = 0;
  // After WatchSilence, called on the loop after each `limit` without a message in either
  // direction.
  virtual void OnSilence(absl::Duration limit) {
    if (!this->sending()) return;
    this->OnBroken(absl::DeadlineExceededError(
        absl::StrFormat("the client has not read anything for %s", absl::FormatDuration(limit))));
    // Ends the write in progress.
    TryCancel();
  }
  // The last hook: gRPC no longer uses the call.
  virtual void OnOver() {}

  // Breaks the call: a write in progress ends, even if the client does not read.
  void TryCancel() {
    std::lock_guard lock(this->mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }
  // To be called once, in OnStart or before. `loop` must outlive the call.
  void WatchSilence(Loop* loop, absl::Duration limit) {
    this->Touch();
    Watch(loop, limit, this->weak_from_this());
  }

  const CallContext call_;

 private:
  void LetGo(const absl::Status& status) final { this->Finish(ToGrpc(status)); }
  void OnCancel() final {
    const std::shared_ptr<CancelToken> cancel = call_.cancel;
    const absl::Status gone = absl::CancelledError("the client left, or the daemon is stopping");
    this->OnBroken(gone);
    cancel->Cancel(gone);
  }
  void OnDone() final {
    const auto self = this->Release();
    {
      std::lock_guard lock(this->mutex_);
      context_ = nullptr;
    }
    OnOver();
  }
  // Silence counts only if this daemon itself did not sleep, because messages may then still be
  // unread.
  static constexpr absl::Duration kLate = absl::Seconds(1);
  static void Watch(Loop* loop, absl::Duration limit, std::weak_ptr<Stream<Reactor, Out>> weak) {
    const Deadline due = Deadline::After(limit);
    loop->PostAfter(limit, [loop, limit, due, weak = std::move(weak)] {
      const auto stream = std::static_pointer_cast<ServerStream>(weak.lock());
      if (stream == nullptr) return;
      if (-due.Left() > kLate) {
        stream->Touch();
      } else if (MonotonicNanos() - stream->heard_ns() >= absl::ToInt64Nanoseconds(limit)) {
        stream->OnSilence(limit);
        stream->Touch();
      }
      Watch(loop, limit, stream);
    });
  }

  grpc::CallbackServerContext* context_;  // null once done; with the lock
};

template <typename Out>
using WriteStream = ServerStream<grpc::ServerWriteReactor<Out>, Out>;

// A call that also receives messages, one at a time: Read requests the next one.
template <typename In, typename Out>
class BidiStream : public ServerStream<grpc::ServerBidiReactor<Parsed<In>, Out>, Out> {
 protected:
  using Base = ServerStream<grpc::ServerBidiReactor<Parsed<In>, Out>, Out>;
  using Base::Base;

  // `message` is valid until the next Read.
  virtual void OnMessage(In* message) = 0;
  // Called when the client has sent its last message, or the call broke.
  virtual void OnHalfClose() = 0;

  // One read at a time; not after OnHalfClose. Has no effect after End.
  void Read() {
    std::lock_guard lock(this->mutex_);
    if (this->phase_ != Base::Phase::kOpen) return;
    in_.message.Clear();
    this->StartRead(&in_);
  }

 private:
  void OnReadDone(bool ok) final {
    this->Touch();
    if (!this->open()) return;
    if (!ok) return OnHalfClose();
    in_.ok ? OnMessage(&in_.message) : this->OnBroken(NotParsed<In>());
  }

  Parsed<In> in_;  // gRPC's while it reads
};

// Creates a stream and hands it to gRPC; the result is the return value of a service's method.
template <typename Derived, typename... Args>
Derived* StartStream(Args&&... args) {
  const auto stream = std::make_shared<Derived>(std::forward<Args>(args)...);
  stream->Start();
  return stream.get();
}

}  // namespace agmm
