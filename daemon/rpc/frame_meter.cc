#include "daemon/rpc/frame_meter.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace agmm {
namespace {

// The calls of one connection. A client of ours begins some 3,000 a second.
constexpr int64_t kCalls = 50'000, kCallsPerSecond = 50'000;
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum FrameType : unsigned char {
  kHeaders = 1,
  kPriority = 2,
  kReset = 3,
  kSettings = 4,
  kPing = 6
};
constexpr unsigned char kAck = 1;        // a flag of settings and pings: this one is an answer
constexpr unsigned char kEndStream = 1;  // a flag of headers; gRPC ends each answer with such

}  // namespace

void Allowance::Refill(int64_t now_ns) {
  if (refilled_ns_ != 0 && now_ns > refilled_ns_) {
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
  left_ = enough ? left_ - static_cast<double>(count) : std::min(left_, 0.0);
  return enough;
}

void Allowance::Charge(int64_t count, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  Refill(now_ns);
  left_ = std::max(left_ - static_cast<double>(count), -static_cast<double>(most_) / 2);
}

int64_t Allowance::Left(int64_t now_ns) {
  std::lock_guard lock(mutex_);
  Refill(now_ns);
  return static_cast<int64_t>(left_);
}

void Allowance::SetPerSecond(int64_t per_second, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  Refill(now_ns);
  per_second_ = per_second;
}

template <typename See>
void FrameWalk::Walk(absl::string_view bytes, See see) {
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
    if (header_bytes_ < kHeaderBytes) return;
    header_bytes_ = 0;
    skip_ = size_t{header_[0]} << 16 | size_t{header_[1]} << 8 | header_[2];
    see(header_[3], header_[4]);
  }
}

FrameMeter::FrameMeter(std::shared_ptr<HostLoad> host)
    : host_(std::move(host)),
      received_(kPreface.size()),
      sent_(0),
      calls_(kCalls, kCallsPerSecond) {
  ++host_->connections;
}

FrameMeter::~FrameMeter() {
  if (closed_) return;
  host_->open -= open_;
  --host_->connections;
}

bool FrameMeter::Received(absl::string_view bytes, int64_t now_ns) {
  int64_t calls = 0, resets = 0, control = 0;
  std::lock_guard lock(mutex_);
  received_.Walk(bytes, [&](unsigned char type, unsigned char flags) {
    if (type == kHeaders) ++calls;
    if (type == kReset) ++resets;
    if (type == kPriority || ((type == kSettings || type == kPing) && (flags & kAck) == 0))
      ++control;
  });
  if (trusted_ || calls + resets + control == 0) return true;
  bool fine = true;
  if (closed_) {
    control += calls;
  } else {
    open_ += calls;
    fine = (host_->open += calls) <= host_->max_open;
    EndCalls(resets);
  }
  control += resets;
  // A host in debt could otherwise leave calls behind on connections that it has opened before.
  if (calls > 0) fine = calls_.Take(calls, now_ns) && host_->control.Left(now_ns) >= 0 && fine;
  if (control > 0) fine = host_->control.Take(control, now_ns) && fine;
  return fine;
}

void FrameMeter::Sent(absl::string_view bytes) {
  int64_t ended = 0;
  std::lock_guard lock(mutex_);
  sent_.Walk(bytes, [&](unsigned char type, unsigned char flags) {
    if (type == kHeaders && (flags & kEndStream) != 0) ++ended;
  });
  EndCalls(ended);
}

void FrameMeter::EndCalls(int64_t count) {
  const int64_t ended = std::min(count, open_);
  open_ -= ended;
  host_->open -= ended;
}

void FrameMeter::Close(int64_t now_ns) {
  std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  --host_->connections;
  // The server still has to end them.
  if (!trusted_ && open_ > 0) host_->control.Charge(open_, now_ns);
  EndCalls(open_);
}

void FrameMeter::Trust() {
  std::lock_guard lock(mutex_);
  trusted_ = true;
  EndCalls(open_);
}

bool FrameMeter::trusted() const {
  std::lock_guard lock(mutex_);
  return trusted_;
}

}  // namespace agmm
