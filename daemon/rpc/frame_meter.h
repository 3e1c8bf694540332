// Bounds what a client may ask of HTTP/2 itself. A client that begins and resets calls faster than
// the server can end them ("rapid reset") would take its memory and its threads, and gRPC has no
// bound on that.
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
  // False if less than `count` is left; then nothing is.
  bool Take(int64_t count, int64_t now_ns);
  int64_t Left(int64_t now_ns);

  int64_t most() const { return most_; }
  int64_t per_second() const { return per_second_; }

 private:
  // With the lock.
  void Refill(int64_t now_ns);

  const int64_t most_, per_second_;
  std::mutex mutex_;
  double left_;
  int64_t refilled_ns_ = 0;
};

// Reads along with the server what one client sends: frames of HTTP/2 (RFC 9113). On one thread at
// a time, but for Trust.
class FrameMeter {
 public:
  // `control`, which a client's connections have in common: resets, pings and settings.
  explicit FrameMeter(std::shared_ptr<Allowance> control);
  // False if with these bytes the client has taken more than it may: break its connection.
  bool Read(absl::string_view bytes, int64_t now_ns);
  // No bound holds any more.
  void Trust() { trusted_ = true; }

 private:
  static constexpr size_t kHeaderBytes = 9;

  const std::shared_ptr<Allowance> control_;
  Allowance calls_;
  std::atomic<bool> trusted_ = false;
  size_t skip_;  // bytes before the next frame's header
  unsigned char header_[kHeaderBytes];
  size_t header_bytes_ = 0;
};

}  // namespace agmm
