#include "tests/support/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace agmm {
namespace {

constexpr int kLookMs = 5;  // interval at which a thread checks if it should end

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

bool Readable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, kLookMs) > 0;
}

}  // namespace

Proxy::Proxy(int port) : to_port_(port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, 16) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

Proxy::~Proxy() {
  Stop();
  for (std::thread* pump : pumps_) {
    pump->join();
    delete pump;
  }
}

std::string Proxy::endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

void Proxy::Cut() {
  hold_ = false;
  ++cuts_;
}

void Proxy::Break() {
  broken_ = true;
  Cut();
}

void Proxy::BreakAfterToClient(int64_t bytes) {
  break_at_cut_ = true;
  CutAfterToClient(bytes);
}

void Proxy::Stop() {
  stopping_ = true;
  if (acceptor_.joinable()) acceptor_.join();
}

void Proxy::Accept() {
  while (!stopping_) {
    if (!Readable(listener_)) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (refuse_one_.exchange(false) || broken_) {
      close(client);
      ++refused_;
      continue;
    }
    const int daemon = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = Loopback(to_port_);
    if (connect(daemon, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      close(client);
      close(daemon);
      continue;
    }
    std::lock_guard lock(mutex_);
    pumps_.insert(new std::thread([this, client, daemon] { Pump(client, daemon); }));
  }
  close(listener_);
}

bool Proxy::PassOn(Direction direction, int from, int to) {
  char bytes[65536];
  const int64_t until_cut = until_cut_[direction];
  const int64_t most = sizeof(bytes);
  const ssize_t size = recv(from, bytes, until_cut > 0 ? std::min(until_cut, most) : most, 0);
  if (size <= 0) return false;
  for (ssize_t sent = 0; sent < size;) {
    const ssize_t part = send(to, bytes + sent, size - sent, MSG_NOSIGNAL);
    if (part <= 0) return false;
    sent += part;
  }
  if (until_cut == 0) return true;
  // Before the count, which tells the test that the cut has happened.
  if (size == until_cut && break_at_cut_.exchange(false)) Break();
  until_cut_[direction] = until_cut - size;
  return until_cut > size;
}

void Proxy::Pump(int client, int daemon) {
  const int cuts = cuts_;
  bool open = true;
  while (open && !stopping_ && cuts == cuts_) {
    pollfd fds[] = {{client, POLLIN, 0}, {daemon, static_cast<short>(hold_ ? 0 : POLLIN), 0}};
    if (poll(fds, 2, kLookMs) <= 0) continue;
    if (fds[0].revents != 0) open = PassOn(kToDaemon, client, daemon);
    if (open && fds[1].revents != 0) open = hold_ ? true : PassOn(kToClient, daemon, client);
  }
  // Sends a reset, not an orderly end.
  const linger at_once = {1, 0};
  setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(client);
  close(daemon);
}

}  // namespace agmm
