// Replaces the libc functions that UCX's TCP transport calls for its sockets and addresses.
#include <dlfcn.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "daemon/transport/handshake_listener.h"
#include "daemon/transport/token.h"

namespace agmm::transport {
namespace {

// A listener to which this process connects with a token.
struct PeerListener {
  std::set<const HandshakeListener*> users;
  std::string salt, secret;
};

struct UnsentToken {
  std::string to;  // SocketAddress::ToString
  std::string token;
};

// One for the process, like the functions of libc.
struct Sockets {
  std::mutex mutex;
  std::map<int, HandshakeListener*> listeners;  // by the socket of UCX
  std::map<std::string, PeerListener> peers;    // by SocketAddress::ToString
  std::map<int, UnsentToken> unsent;            // by connection, until its first byte is sent
  // The sizes of listeners and unsent, so that other sockets cost no lock.
  std::atomic<int> listener_count = 0, unsent_count = 0;
};

Sockets& sockets() {
  static Sockets* const made = new Sockets;  // never destroyed: libraries call until the end
  return *made;
}

thread_local HandshakeListener* next_listener = nullptr;
thread_local const SocketAddress* shown_address = nullptr;

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

HandshakeListener* ListenerOf(int fd) {
  Sockets& all = sockets();
  if (all.listener_count == 0) return nullptr;
  std::lock_guard lock(all.mutex);
  const auto it = all.listeners.find(fd);
  return it == all.listeners.end() ? nullptr : it->second;
}

void SetUnsentToken(int fd, std::optional<UnsentToken> token) {
  Sockets& all = sockets();
  if (!token.has_value() && all.unsent_count == 0) return;
  std::lock_guard lock(all.mutex);
  all.unsent.erase(fd);
  if (token.has_value()) all.unsent[fd] = *std::move(token);
  all.unsent_count = static_cast<int>(all.unsent.size());
}

// The token to send first, if any.
std::optional<std::string> TakeUnsentToken(int fd) {
  Sockets& all = sockets();
  if (all.unsent_count == 0) return std::nullopt;
  std::lock_guard lock(all.mutex);
  const auto found = all.unsent.extract(fd);
  all.unsent_count = static_cast<int>(all.unsent.size());
  if (found.empty()) return std::nullopt;
  // The connection may have been closed before it sent, and its number reused.
  SocketAddress peer;
  if (getpeername(fd, peer.get(), &peer.size) != 0 || peer.ToString() != found.mapped().to)
    return std::nullopt;
  return found.mapped().token;
}

std::optional<UnsentToken> MakeTokenFor(const SocketAddress& to) {
  Sockets& all = sockets();
  std::lock_guard lock(all.mutex);
  const auto it = all.peers.find(to.ToString());
  if (it == all.peers.end()) return std::nullopt;
  return UnsentToken{it->first, MakeToken(it->second.secret, it->second.salt)};
}

// Breaks the connection if bytes stay unacknowledged for this long, because the path is cut.
void EndWhenSilent(int fd) {
  constexpr unsigned kSilence_ms = 2500;
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kSilence_ms, sizeof(kSilence_ms));
}

void Copy(const SocketAddress& from, sockaddr* to, socklen_t* size) {
  std::memcpy(to, from.get(), std::min(*size, from.size));
  *size = from.size;
}

}  // namespace

ShownAddress::ShownAddress(const SocketAddress& address) { shown_address = &address; }
ShownAddress::~ShownAddress() { shown_address = nullptr; }

void SetNextListener(HandshakeListener* listener) { next_listener = listener; }

void SendTokens(const HandshakeListener* user, const ListenerAddress& peer,
                const std::string& secret) {
  Sockets& all = sockets();
  std::lock_guard lock(all.mutex);
  PeerListener& known = all.peers[peer.socket.ToString()];
  known.users.insert(user);
  known.salt = peer.salt;
  known.secret = secret;
}

void Forget(const HandshakeListener* listener) {
  Sockets& all = sockets();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.listeners, [&](const auto& entry) { return entry.second == listener; });
  for (auto& [address, peer] : all.peers) peer.users.erase(listener);
  std::erase_if(all.peers, [](const auto& entry) { return entry.second.users.empty(); });
  all.listener_count = static_cast<int>(all.listeners.size());
}

}  // namespace agmm::transport

// UCX uses these functions to find its addresses and to open and use its sockets (ucs/sys/sock.c,
// uct/tcp/tcp_iface.c).
using namespace agmm;
using namespace agmm::transport;

extern "C" {

int getifaddrs(ifaddrs** list) noexcept {
  static const auto next = Next<decltype(getifaddrs)>("getifaddrs");
  const int result = next(list);
  if (result != 0 || shown_address == nullptr) return result;
  // Hidden entries stay in the list, which is freed as a whole, as interfaces without an address.
  for (ifaddrs* entry = *list; entry != nullptr; entry = entry->ifa_next) {
    const auto has = SocketAddress::Of(entry->ifa_addr);
    if (has.has_value() && has->ip() != shown_address->ip()) entry->ifa_addr = nullptr;
  }
  return result;
}

int listen(int fd, int backlog) {
  static const auto next = Next<decltype(listen)>("listen");
  HandshakeListener* const listener = std::exchange(next_listener, nullptr);
  if (listener == nullptr) return next(fd, backlog);
  listener->TakeOver(fd);
  Sockets& all = sockets();
  std::lock_guard lock(all.mutex);
  all.listeners[fd] = listener;
  all.listener_count = static_cast<int>(all.listeners.size());
  return 0;
}

int getsockname(int fd, sockaddr* address, socklen_t* size) noexcept {
  static const auto next = Next<decltype(getsockname)>("getsockname");
  const HandshakeListener* const listener = ListenerOf(fd);
  if (listener == nullptr) return next(fd, address, size);
  Copy(listener->address().socket, address, size);
  return 0;
}

int accept(int fd, sockaddr* address, socklen_t* size) {
  static const auto next = Next<decltype(accept)>("accept");
  HandshakeListener* const listener = ListenerOf(fd);
  if (listener == nullptr) return next(fd, address, size);
  SocketAddress from;
  const int accepted = listener->Accept(&from);
  if (accepted < 0) {
    errno = EAGAIN;
    return -1;
  }
  SetUnsentToken(accepted, std::nullopt);
  EndWhenSilent(accepted);
  if (address != nullptr) Copy(from, address, size);
  return accepted;
}

int connect(int fd, const sockaddr* address, socklen_t size) {
  static const auto next = Next<decltype(connect)>("connect");
  SocketAddress to;
  if ((address->sa_family == AF_INET || address->sa_family == AF_INET6) &&
      size <= sizeof(to.bytes)) {
    std::memcpy(&to.bytes, address, size);
    auto token = MakeTokenFor(to);
    if (token.has_value()) EndWhenSilent(fd);
    SetUnsentToken(fd, std::move(token));
  }
  return next(fd, address, size);
}

ssize_t send(int fd, const void* data, size_t size, int flags) {
  static const auto next = Next<decltype(send)>("send");
  if (const auto token = TakeUnsentToken(fd); token.has_value()) {
    // Always fits into the buffer of a socket that has sent nothing yet.
    if (next(fd, token->data(), token->size(), flags) != static_cast<ssize_t>(token->size())) {
      errno = ECONNRESET;
      return -1;
    }
  }
  return next(fd, data, size, flags);
}

}  // extern "C"
