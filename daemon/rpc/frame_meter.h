// Bounds what clients ask of HTTP/2 itself. A client that begins calls and then resets them, or
// closes its connection, faster than the server can end them ("rapid reset") would take its memory
// and its threads, and gRPC has no bound on that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/strings/string_view.h"

namespace agmm {

// Permits `most` things at once, and `per_second` more each second. Thread-safe.
class Allowance {
 public:
  Allowance(int64_t most, int64_t per_second)
      : most_(most), per_second_(per_second), left_(static_cast<double>(most)) {}
  // Takes `count`, and returns false if less was left; then nothing is.
  bool Take(int64_t count, int64_t now_ns);
  // Takes `count` even if less is left. At most half of `most` is then owed.
  void Charge(int64_t count, int64_t now_ns);
  // May be negative.
  int64_t Left(int64_t now_ns);
  // Changes the rate from now on.
  void SetPerSecond(int64_t per_second, int64_t now_ns);

  int64_t most() const { return most_; }

 private:
  // With the lock.
  void Refill(int64_t now_ns);

  const int64_t most_;
  std::mutex mutex_;  // guards what follows
  int64_t per_second_;
  double left_;
  int64_t refilled_ns_ = 0;
};

// Counts what the clients at one host ask of one server together. Thread-safe.
struct HostLoad {
  Allowance control;              // resets, pings, settings; calls left behind by a connection
  const int64_t max_open;         // calls that the server has not answered
  std::atomic<int64_t> open = 0;  // of these
  std::atomic<int> connections = 0;
};

// Finds the headers of frames (RFC 9113, 4.1) in a stream of bytes.
class FrameWalk {
 public:
  // `skip`: bytes before the first frame.
  explicit FrameWalk(size_t skip) : skip_(skip) {}
  // Calls `see`(type, flags) for each frame whose header is complete with `bytes`.
  template <typename See>
  void Walk(absl::string_view bytes, See see);

 private:
  static constexpr size_t kHeaderBytes = 9;
  size_t skip_;  // bytes before the next header
  unsigned char header_[kHeaderBytes];
  size_t header_bytes_ = 0;
};

// Follows one connection of a server. Thread-safe.
class FrameMeter {
 public:
  explicit FrameMeter(std::shared_ptr<HostLoad> host);
  ~FrameMeter();
  // The client has sent `bytes`. False if it has now asked for more than it may: break the
  // connection.
  bool Received(absl::string_view bytes, int64_t now_ns);
  // The server has sent `bytes`.
  void Sent(absl::string_view bytes);
  // The connection has ended. The server may still read what arrived before.
  void Close(int64_t now_ns);
  // From now on no bound holds for it.
  void Trust();
  bool trusted() const;

 private:
  // With the lock.
  void EndCalls(int64_t count);

  const std::shared_ptr<HostLoad> host_;
  mutable std::mutex mutex_;  // guards what follows
  FrameWalk received_, sent_;
  Allowance calls_;
  int64_t open_ = 0;  // calls that were begun here, and neither answered nor reset
  bool trusted_ = false, closed_ = false;
};

}  // namespace agmm
