#include "daemon/link/udp_heartbeats.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "daemon/link/dial.h"
#include "daemon/link/protocol.h"
#include "kernels/base/clock.h"
#include "kernels/base/host_port.h"
#include "kernels/base/keyed_hash.h"
#include "kernels/base/socket_address.h"
#include "kernels/base/status.h"
#include "kernels/base/thread.h"

namespace agmm {
namespace {

// A datagram: the mark, the stream's id, the datagram's number, and a keyed hash of both and of the
// direction, so that a question cannot be returned as its own answer.
constexpr absl::string_view kMark = "agmmbeat";
constexpr size_t kStreamIdBytes = 16, kNumberBytes = sizeof(uint64_t), kHashBytes = 16;
constexpr size_t kBytes = kMark.size() + kStreamIdBytes + kNumberBytes + kHashBytes;
constexpr absl::string_view kQuestion = "agmm beat question", kAnswer = "agmm beat answer";
constexpr int kAtOnce = 64;
// A question without an answer is repeated after this time.
const absl::Duration kAskAgain = kHeartbeatPeriod / 4;

std::string IdOf(const std::string& key) {
  return KeyedHash(key, {"agmm beat stream"}).substr(0, kStreamIdBytes);
}

std::string Signed(absl::string_view direction, const std::string& key, const std::string& id,
                   uint64_t number) {
  const absl::string_view bytes(reinterpret_cast<const char*>(&number), sizeof(number));
  return absl::StrCat(kMark, id, bytes,
                      KeyedHash(key, {direction, id, bytes}).substr(0, kHashBytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<UdpHeartbeats>> UdpHeartbeats::Answer(std::vector<int> sockets) {
  return Start(std::unique_ptr<UdpHeartbeats>(new UdpHeartbeats(std::move(sockets), "", 0)));
}

absl::StatusOr<std::unique_ptr<UdpHeartbeats>> UdpHeartbeats::Ask(const std::string& address,
                                                                  size_t patience) {
  return Start(std::unique_ptr<UdpHeartbeats>(new UdpHeartbeats({}, address, patience)));
}

absl::StatusOr<std::unique_ptr<UdpHeartbeats>> UdpHeartbeats::Start(
    std::unique_ptr<UdpHeartbeats> made) {
  if (made->stop_ < 0)
    return absl::ResourceExhaustedError("no descriptor for the UDP heartbeats; raise ulimit -n");
  AGMM_ASSIGN_OR_RETURN(made->thread_,
                        StartThread("the UDP heartbeats", [raw = made.get()] { raw->Loop(); }));
  return made;
}

UdpHeartbeats::UdpHeartbeats(std::vector<int> sockets, std::string address, size_t patience)
    : address_(std::move(address)),
      patience_(patience),
      sockets_(std::move(sockets)),
      stop_(eventfd(0, EFD_CLOEXEC)) {}

UdpHeartbeats::~UdpHeartbeats() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  for (int fd : sockets_) close(fd);
  if (stop_ >= 0) close(stop_);
}

void UdpHeartbeats::Begin(const std::string& key) {
  std::lock_guard lock(mutex_);
  streams_[IdOf(key)] = {.key = key};
}

void UdpHeartbeats::End(const std::string& key) {
  std::lock_guard lock(mutex_);
  streams_.erase(IdOf(key));
}

int64_t UdpHeartbeats::heard_ns(const std::string& key) const {
  std::lock_guard lock(mutex_);
  const auto it = streams_.find(IdOf(key));
  return it == streams_.end() ? 0 : it->second.heard_ns;
}

void UdpHeartbeats::Loop() {
  const bool asks = !address_.empty();
  int64_t asked_ms = 0;
  while (true) {
    int wait_ms = -1;
    if (asks) {
      // Each datagram wakes both hosts, so an idle world asks as rarely as possible.
      const int64_t pause_ms =
          absl::ToInt64Milliseconds(AllAnswered() ? kHeartbeatPeriod : kAskAgain);
      const int64_t now_ms = MonotonicNanos() / 1'000'000;
      if (now_ms >= asked_ms + pause_ms) {
        AskAll();
        asked_ms = now_ms;
        continue;
      }
      wait_ms = static_cast<int>(asked_ms + pause_ms - now_ms);
    }
    std::vector<pollfd> fds = {{stop_, POLLIN, 0}};
    for (int fd : sockets_) fds.push_back({fd, POLLIN, 0});
    poll(fds.data(), fds.size(), wait_ms);
    if (fds[0].revents != 0) return;
    for (size_t i = 1; i < fds.size(); ++i)
      if (fds[i].revents != 0) Receive(fds[i].fd);
  }
}

bool UdpHeartbeats::AllAnswered() const {
  std::lock_guard lock(mutex_);
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    return stream.second.received == stream.second.sent;
  });
}

void UdpHeartbeats::AskAll() {
  std::vector<std::string> datagrams;
  int64_t heard_ns = 0;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, stream] : streams_) {
      datagrams.push_back(Signed(kQuestion, stream.key, id, ++stream.sent));
      heard_ns = std::max(heard_ns, stream.heard_ns);
    }
  }
  if (datagrams.empty()) return;
  Reconnect(heard_ns);
  if (sockets_.empty()) return;
  for (const std::string& datagram : datagrams)
    if (send(sockets_[0], datagram.data(), datagram.size(), 0) < 0) Note(errno);
}

void UdpHeartbeats::Reconnect(int64_t heard_ns) {
  const int64_t now_ns = MonotonicNanos();
  const int64_t limit_ns = absl::ToInt64Nanoseconds(2 * kHeartbeatPeriod);
  if (!sockets_.empty() && now_ns - std::max(heard_ns, connected_ns_) <= limit_ns) return;
  if (!sockets_.empty()) close(sockets_[0]);
  sockets_.clear();
  if (attempts_ == patience_)
    spdlog::warn(
        "no UDP heartbeat reply from {}: {}; open that port for UDP, or this node may be dropped "
        "under load",
        address_, absl::StrJoin(answers_, "; ", [](std::string* out, const auto& answer) {
          absl::StrAppend(out, answer.second);
        }));
  Connect();
  ++attempts_;
  connected_ns_ = now_ns;
}

// Connects to the next of the name's current addresses.
void UdpHeartbeats::Connect() {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address_, 1);
  if (!parsed.ok()) return;  // the configuration was checked
  const absl::StatusOr<std::vector<SocketAddress>> all = Resolve(parsed->host, parsed->port);
  if (!all.ok()) {
    answers_[address_] = std::string(all.status().message());
    return;
  }
  dialled_ = (*all)[attempts_ % all->size()];
  const int fd = socket(dialled_.bytes.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && connect(fd, dialled_.get(), dialled_.size) == 0) {
    sockets_.push_back(fd);
    return Note(ETIMEDOUT);  // until there is a more specific answer
  }
  Note(errno);
  if (fd >= 0) close(fd);
}

void UdpHeartbeats::Note(int error) {
  const std::string to = dialled_.ToString();
  answers_[to] = DialAnswer(to, error);
}

void UdpHeartbeats::Receive(int fd) {
  for (int count = 0; count < kAtOnce; ++count) {
    char bytes[kBytes + 1];
    SocketAddress from;
    const ssize_t size = recvfrom(fd, bytes, sizeof(bytes), MSG_DONTWAIT, from.get(), &from.size);
    if (size < 0) {
      if (errno != EAGAIN && !address_.empty()) Note(errno);
      return;
    }
    const absl::string_view datagram(bytes, size);
    if (size != kBytes || !absl::StartsWith(datagram, kMark)) continue;
    const std::string id(datagram.substr(kMark.size(), kStreamIdBytes));
    uint64_t number;
    std::memcpy(&number, bytes + kMark.size() + kStreamIdBytes, sizeof(number));
    std::string answer;
    {
      std::lock_guard lock(mutex_);
      const auto it = streams_.find(id);
      if (it == streams_.end()) continue;
      Stream& stream = it->second;
      const bool asks = !address_.empty();
      // An old datagram may be a replay.
      if (number <= stream.received ||
          !SameHash(datagram, Signed(asks ? kAnswer : kQuestion, stream.key, id, number)))
        continue;
      stream.received = number;
      stream.heard_ns = MonotonicNanos();
      ++received_total_;
      if (asks) answers_.clear();
      if (!asks) answer = Signed(kAnswer, stream.key, id, number);
    }
    if (!answer.empty()) sendto(fd, answer.data(), answer.size(), 0, from.get(), from.size);
  }
}

bool IsSilent(int64_t now_ns, int64_t message_ns, int64_t heartbeat_ns) {
  return now_ns - std::max(message_ns, heartbeat_ns) > absl::ToInt64Nanoseconds(kSilenceLimit) ||
         now_ns - message_ns > absl::ToInt64Nanoseconds(kStreamSilenceLimit);
}

std::string SilenceOf(int64_t now_ns, int64_t message_ns) {
  const bool long_silence = now_ns - message_ns > absl::ToInt64Nanoseconds(kStreamSilenceLimit);
  return absl::StrCat("no message for ",
                      absl::FormatDuration(long_silence ? kStreamSilenceLimit : kSilenceLimit));
}

}  // namespace agmm
