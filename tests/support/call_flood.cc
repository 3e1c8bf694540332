#include "tests/support/call_flood.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace agmm {
namespace {

constexpr int kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kContinuation = 9, kEndStream = 1,
              kEndHeaders = 4;
constexpr uint32_t kCancel = 8;
constexpr int kCallsAtOnce = 200;
constexpr uint32_t kUnreadCalls = 4'000;         // of a connection; likewise
constexpr uint32_t kCallsOfAConnection = 5'000;  // fewer than the daemon lets a host leave open

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::string Frame(int type, int flags, uint32_t stream, const std::string& payload) {
  return BigEndian(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + BigEndian(stream, 4) + payload;
}

// HPACK, neither indexed nor compressed.
std::string Header(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

// A message of gRPC, of which `message` is the beginning.
std::string Message(const std::string& message, size_t size) {
  return std::string(1, '\0') + BigEndian(static_cast<uint32_t>(size), 4) + message;
}

std::string PathOf(CallFlood::Kind kind) {
  switch (kind) {
    case CallFlood::Kind::kHalf: return "/agmm.v1.ContentService/Upload";
    case CallFlood::Kind::kUnreadJobs: return "/agmm.v1.JobService/ListJobs";
    case CallFlood::Kind::kUnreadTensor: return "/agmm.v1.ContentService/ReadTensor";
    default: return "/agmm.v1.ClusterService/GetStatus";
  }
}

// The bytes that follow the headers of a call.
std::string BodyOf(CallFlood::Kind kind, uint32_t stream) {
  constexpr size_t kHalfOf = 1 << 20;
  const std::string thousand_jobs = "\x08\xe8\x07", tensor =
                                                        "\x0a\x07\x12\x05"
                                                        "flood";
  switch (kind) {
    case CallFlood::Kind::kReset: return Frame(kReset, 0, stream, BigEndian(kCancel, 4));
    case CallFlood::Kind::kHalf:
      return Frame(kData, 0, stream, Message(std::string(kHalfOf / 128, 'h'), kHalfOf));
    case CallFlood::Kind::kUnreadJobs:
      return Frame(kData, kEndStream, stream, Message(thousand_jobs, thousand_jobs.size()));
    case CallFlood::Kind::kUnreadTensor:
      return Frame(kData, kEndStream, stream, Message(tensor, tensor.size()));
    default: return "";
  }
}

// As many headers as one frame holds.
std::string SmallHeaders() {
  constexpr size_t kMostBytes = 16'000;
  std::string headers;
  for (int i = 0; headers.size() < kMostBytes; ++i) headers += Header(std::to_string(i), "");
  return headers;
}

}  // namespace

int ConnectTo(const std::string& endpoint) {
  sockaddr_storage bytes{};
  socklen_t size;
  if (endpoint[0] == '/') {
    auto& address = reinterpret_cast<sockaddr_un&>(bytes);
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, endpoint.c_str(), sizeof(address.sun_path) - 1);
    size = sizeof(address);
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(bytes);
    const size_t colon = endpoint.rfind(':');
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::atoi(endpoint.c_str() + colon + 1)));
    inet_pton(AF_INET, endpoint.substr(0, colon).c_str(), &address.sin_addr);
    size = sizeof(address);
  }
  const int fd = socket(bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&bytes), size) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

CallFlood::CallFlood(const std::string& endpoint, Kind kind)
    : CallFlood([endpoint] { return ConnectTo(endpoint); }, kind) {}

CallFlood::CallFlood(std::function<int()> connect, Kind kind)
    : connect_(std::move(connect)), kind_(kind), thread_([this] { Run(); }) {}

CallFlood::~CallFlood() {
  stopping_ = true;
  thread_.join();
}

void CallFlood::Run() {
  while (!stopping_) {
    const int fd = connect_();
    if (fd >= 0) {
      Flood(fd);
      if (!stopping_) ++ended_;
      close(fd);
    } else {
      usleep(1000);
    }
  }
}

void CallFlood::Flood(int fd) {
  const std::string request = Header(":method", "POST") + Header(":scheme", "http") +
                              Header(":authority", "flood") + Header(":path", PathOf(kind_)) +
                              Header("te", "trailers") + Header("content-type", "application/grpc");
  std::string headers = request;
  if (kind_ == Kind::kHeaders) headers += SmallHeaders();
  // "cookie" of HPACK's static table, without a value.
  if (kind_ == Kind::kFields) headers += std::string(200, static_cast<char>(0x80 | 32));
  std::string unsent = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");
  if (kind_ == Kind::kContinuation) unsent += Frame(kHeaders, 0, 1, request);
  const std::string more = Frame(kContinuation, 0, 1, SmallHeaders());
  const bool unread = kind_ == Kind::kUnreadJobs || kind_ == Kind::kUnreadTensor;
  uint32_t stream = 1;
  while (!stopping_) {
    if (unread && unsent.empty() && stream > 2 * kUnreadCalls) {
      pollfd end{fd, 0, 0};
      if (poll(&end, 1, 100) > 0) return;
      continue;
    }
    if (unsent.empty()) {
      if (kind_ == Kind::kLeave && stream > 2 * kCallsOfAConnection) return;
      for (int i = 0; i < kCallsAtOnce; ++i, stream += 2) {
        unsent +=
            kind_ == Kind::kContinuation ? more : Frame(kHeaders, kEndHeaders, stream, headers);
        unsent += BodyOf(kind_, stream);
      }
      calls_ += kCallsAtOnce;
    }
    const ssize_t sent = send(fd, unsent.data(), unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      unsent.erase(0, sent);
      continue;
    }
    if (errno != EAGAIN) return;
    pollfd ready{fd, static_cast<short>(unread ? POLLOUT : POLLIN | POLLOUT), 0};
    poll(&ready, 1, 100);
    if (unread) continue;
    // The daemon's answers are read, so that they do not fill its buffers.
    char answers[1 << 16];
    if ((ready.revents & POLLIN) != 0 && recv(fd, answers, sizeof(answers), MSG_DONTWAIT) == 0)
      return;
  }
}

}  // namespace agmm
