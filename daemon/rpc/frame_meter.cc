#include "daemon/rpc/frame_meter.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace agmm {
namespace {

// A connection's calls. Our own clients begin some 3,000 calls a second.
constexpr int64_t kCalls = 50'000, kCallsPerSecond = 50'000;
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum FrameType : unsigned char {
  kHeaders = 1,
  kPriority = 2,
  kReset = 3,
  kSettings = 4,
  kPing = 6
};
constexpr unsigned char kAck = 1;  // of settings and pings: the server asked

}  // namespace

void Allowance::Refill(int64_t now_ns) {
  if (refilled_ns_ != 0) {
    const double seconds = static_cast<double>(now_ns - refilled_ns_) * 1e-9;
    left_ =
        std::min(left_ + seconds * static_cast<double>(per_second_), static_cast<double>(most_));
  }
  refilled_ns_ = std::max(refilled_ns_, now_ns);
}

bool Allowance::Take(int64_t count, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  Refill(now_ns);
  const bool enough = static_cast<double>(count) <= left_;
  left_ = enough ? left_ - static_cast<double>(count) : 0;
  return enough;
}

int64_t Allowance::Left(int64_t now_ns) {
  std::lock_guard lock(mutex_);
  Refill(now_ns);
  return static_cast<int64_t>(left_);
}

FrameMeter::FrameMeter(std::shared_ptr<Allowance> control)
    : control_(std::move(control)), calls_(kCalls, kCallsPerSecond), skip_(kPreface.size()) {}

bool FrameMeter::Read(absl::string_view bytes, int64_t now_ns) {
  int64_t calls = 0, control = 0;
  while (!bytes.empty()) {
    if (skip_ > 0) {
      const size_t skipped = std::min(skip_, bytes.size());
      skip_ -= skipped;
      bytes.remove_prefix(skipped);
      continue;
    }
    const size_t taken = std::min(kHeaderBytes - header_bytes_, bytes.size());
    std::memcpy(header_ + header_bytes_, bytes.data(), taken);
    header_bytes_ += taken;
    bytes.remove_prefix(taken);
    if (header_bytes_ < kHeaderBytes) break;
    header_bytes_ = 0;
    skip_ = size_t{header_[0]} << 16 | size_t{header_[1]} << 8 | header_[2];
    const unsigned char type = header_[3], flags = header_[4];
    if (type == kHeaders) ++calls;
    if (type == kReset || type == kPriority ||
        ((type == kSettings || type == kPing) && (flags & kAck) == 0))
      ++control;
  }
  if (trusted_) return true;
  return (calls == 0 || calls_.Take(calls, now_ns)) &&
         (control == 0 || control_->Take(control, now_ns));
}

}  // namespace agmm
