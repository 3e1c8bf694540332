#include "daemon/rpc/frame_meter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

namespace agmm {
namespace {

// Bounds on the calls of one connection. A client of ours begins some 3,000 a second.
constexpr int64_t kCalls = 50'000, kCallsPerSecond = 50'000;
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Bound of one header block, as HeaderSize counts it. gRPC takes no headers of more than 8 KiB
// decoded, which is 200 fields at most.
constexpr int64_t kBlockBytes = 64 << 10;

enum FrameType : unsigned char {
  kHeaders = 1,
  kPriority = 2,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kContinuation = 9
};
constexpr unsigned char kAck = 1;             // flag of SETTINGS and PING: this one is an answer
constexpr unsigned char kEndStream = 1;       // flag of HEADERS; gRPC ends each answer with it
constexpr unsigned char kHasPriority = 0x20;  // flag of HEADERS: a priority precedes the fields
constexpr uint32_t kPriorityBytes = 5;

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

int64_t Allowance::per_second() {
  std::lock_guard lock(mutex_);
  return per_second_;
}

template <typename See, typename Read>
void FrameWalk::Walk(absl::string_view bytes, See see, Read read) {
  while (!bytes.empty()) {
    if (skip_ > 0) {
      const absl::string_view part = bytes.substr(0, skip_);
      read(header_, part);
      skip_ -= part.size();
      bytes.remove_prefix(part.size());
      continue;
    }
    const size_t taken = std::min(kHeaderBytes - header_bytes_, bytes.size());
    std::memcpy(bytes_ + header_bytes_, bytes.data(), taken);
    header_bytes_ += taken;
    bytes.remove_prefix(taken);
    if (header_bytes_ < kHeaderBytes) return;
    header_bytes_ = 0;
    skip_ = size_t{bytes_[0]} << 16 | size_t{bytes_[1]} << 8 | bytes_[2];
    header_ = {static_cast<uint32_t>(skip_), bytes_[3], bytes_[4],
               (uint32_t{bytes_[5]} & 0x7f) << 24 | uint32_t{bytes_[6]} << 16 |
                   uint32_t{bytes_[7]} << 8 | bytes_[8]};
    see(header_);
  }
}

int64_t HeldHeaders::MostOfHost(int64_t max_held) const {
  constexpr int64_t kParts = 16;
  const int64_t all = bytes;
  if (all <= most_bytes) return max_held;
  const int64_t part = max_held / kParts;
  return all <= 2 * most_bytes ? part : std::min(part, most_bytes / most_connections);
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
  EndAllCalls();
  --host_->connections;
}

// The contents of one piece that a client has sent.
struct FrameMeter::Counts {
  int64_t calls = 0, resets = 0, control = 0, header_bytes = 0, largest_block = 0;
  const char* malformed = nullptr;  // the reason
};

std::string FrameMeter::Received(absl::string_view bytes, int64_t now_ns) {
  Counts counts;
  std::lock_guard lock(mutex_);
  received_.Walk(
      bytes, [&](const FrameHeader& header) { Count(header, &counts); },
      [&](const FrameHeader& header, absl::string_view part) {
        const bool has_fields = header.type == kHeaders || header.type == kContinuation;
        if (trusted_ || !has_fields) return;
        const int64_t more = Measure(part);
        counts.header_bytes += more;
        counts.largest_block = std::max(counts.largest_block, block_.bytes);
        Hold(more);
      });
  return trusted_ ? "" : ReasonToBreak(counts, now_ns);
}

void FrameMeter::Count(const FrameHeader& header, Counts* counts) {
  if (header.type == kHeaders) {
    const bool priority = (header.flags & kHasPriority) != 0;
    block_ = {.stream = header.stream, .skip = priority ? kPriorityBytes : 0};
    // gRPC would read bytes of one block as fields of another.
    if (!headers_.complete()) counts->malformed = "a block of its headers ends within a field";
    if (header.size < block_.skip) counts->malformed = "the priority in its headers is cut off";
    // Headers of a known stream are trailers.
    const bool known = closed_ || trusted_ || !open_.try_emplace(header.stream).second;
    if (!known) ++host_->open;
    counts->calls += known && !closed_ ? 0 : 1;
  }
  if (header.type == kReset) {
    ++counts->resets;
    EndCall(header.stream);
  }
  const bool answer = (header.flags & kAck) != 0;
  if (header.type == kPriority || header.type == kContinuation ||
      ((header.type == kSettings || header.type == kPing) && !answer))
    ++counts->control;
}

std::string FrameMeter::ReasonToBreak(const Counts& counts, int64_t now_ns) {
  const int64_t calls = counts.calls, header_bytes = counts.header_bytes;
  const int64_t control = counts.control + counts.resets + (closed_ ? calls : 0);
  if (counts.malformed != nullptr) return counts.malformed;
  if (calls + control + header_bytes == 0) return "";
  HostLoad& host = *host_;
  std::string why;
  const auto check = [&why](bool fine, auto describe) {
    if (!fine && why.empty()) why = describe();
  };
  check(counts.largest_block <= kBlockBytes, [&] {
    return absl::StrFormat(
        "the headers of a call have %d bytes, counting %d for each field; the bound is %d",
        counts.largest_block, kFieldBytes, kBlockBytes);
  });
  check(header_bytes == 0 || host.headers.Take(header_bytes, now_ns), [&] {
    return absl::StrFormat(
        "its host sends headers of more than %d bytes at once and %d a second, counting %d for "
        "each field",
        host.headers.most(), host.headers.per_second(), kFieldBytes);
  });
  if (header_bytes > 0) {
    const int64_t held = host.held;
    const int64_t most = host.held_by_all->MostOfHost(host.max_held);
    check(held <= most, [&] {
      return absl::StrFormat(
          "the headers of its host's unanswered calls have %d bytes, counting %d for each field; "
          "the bound is %d",
          held, kFieldBytes, most);
    });
  }
  check(host.open <= host.max_open || calls == 0, [&] {
    return absl::StrFormat("its host has %d unanswered calls; the bound is %d", host.open.load(),
                           host.max_open);
  });
  check(calls == 0 || calls_.Take(calls, now_ns), [&] {
    return absl::StrFormat("it begins more than %d calls at once and %d a second", kCalls,
                           kCallsPerSecond);
  });
  // Otherwise a host in debt could leave calls behind on connections that it has already opened.
  const bool in_debt = calls > 0 && host.control.Left(now_ns) < 0;
  check((control == 0 || host.control.Take(control, now_ns)) && !in_debt, [&] {
    return absl::StrFormat(
        "its host makes more than %d resets, pings, settings and abandoned calls at once and %d a "
        "second",
        host.control.most(), host.control.per_second());
  });
  return why;
}

int64_t FrameMeter::Measure(absl::string_view part) {
  const size_t skipped = std::min<size_t>(block_.skip, part.size());
  block_.skip -= static_cast<uint32_t>(skipped);
  const int64_t bytes = static_cast<int64_t>(skipped) + headers_.Read(part.substr(skipped));
  block_.bytes += bytes;
  return bytes;
}

void FrameMeter::Hold(int64_t bytes) {
  const auto call = open_.find(block_.stream);
  if (call == open_.end()) return;
  call->second += bytes;
  host_->held += bytes;
  host_->held_by_all->bytes += bytes;
}

void FrameMeter::Sent(absl::string_view bytes) {
  std::lock_guard lock(mutex_);
  sent_.Walk(
      bytes,
      [&](const FrameHeader& header) {
        if (header.type == kReset || (header.type == kHeaders && (header.flags & kEndStream) != 0))
          EndCall(header.stream);
      },
      [](const FrameHeader&, absl::string_view) {});
}

void FrameMeter::EndCall(uint32_t stream) {
  const auto call = open_.find(stream);
  if (call == open_.end()) return;
  --host_->open;
  host_->held -= call->second;
  host_->held_by_all->bytes -= call->second;
  open_.erase(call);
}

void FrameMeter::EndAllCalls() {
  int64_t bytes = 0;
  for (const auto& [stream, held] : open_) bytes += held;
  host_->open -= static_cast<int64_t>(open_.size());
  host_->held -= bytes;
  host_->held_by_all->bytes -= bytes;
  open_.clear();
}

void FrameMeter::Close(int64_t now_ns) {
  std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  --host_->connections;
  // The server still has to end them.
  if (!trusted_ && !open_.empty())
    host_->control.Charge(static_cast<int64_t>(open_.size()), now_ns);
  EndAllCalls();
}

void FrameMeter::Trust() {
  std::lock_guard lock(mutex_);
  trusted_ = true;
  EndAllCalls();
}

bool FrameMeter::trusted() const {
  std::lock_guard lock(mutex_);
  return trusted_;
}

}  // namespace agmm
