#include "daemon/transport/socket_calls.h"

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

#include "daemon/transport/token.h"

namespace agmm::transport {
namespace {

struct Door {
  std::set<const Listener*> users;
  std::string salt, secret;
};

struct Greeting {
  std::string to;  // SocketAddress::ToString
  std::string token;
};

// One for the process, like the functions of libc.
struct Sockets {
  std::mutex mutex;
  std::map<int, Listener*> listeners;  // by the socket of UCX
  std::map<std::string, Door> doors;   // by SocketAddress::ToString
  std::map<int, Greeting> unspoken;    // by connection, until its first byte is sent
  // The sizes of listeners and unspoken, so that other sockets cost no lock.
  std::atomic<int> listener_count = 0, unspoken_count = 0;
};

Sockets& sockets() {
  static Sockets* const made = new Sockets;  // never destroyed: libraries call until the end
  return *made;
}

thread_local Listener* next_listener = nullptr;
thread_local const SocketAddress* shown_address = nullptr;

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

Listener* ListenerOf(int fd) {
  Sockets& all = sockets();
  if (all.listener_count == 0) return nullptr;
  std::lock_guard lock(all.mutex);
  const auto it = all.listeners.find(fd);
  return it == all.listeners.end() ? nullptr : it->second;
}

void SetUnspoken(int fd, std::optional<Greeting> greeting) {
  Sockets& all = sockets();
  if (!greeting.has_value() && all.unspoken_count == 0) return;
  std::lock_guard lock(all.mutex);
  all.unspoken.erase(fd);
  if (greeting.has_value()) all.unspoken[fd] = *std::move(greeting);
  all.unspoken_count = static_cast<int>(all.unspoken.size());
}

// The token to send first, if any.
std::optional<std::string> TakeUnspoken(int fd) {
  Sockets& all = sockets();
  if (all.unspoken_count == 0) return std::nullopt;
  std::lock_guard lock(all.mutex);
  const auto found = all.unspoken.extract(fd);
  all.unspoken_count = static_cast<int>(all.unspoken.size());
  if (found.empty()) return std::nullopt;
  // The connection may have been closed before it spoke, and its number be another one's now.
  SocketAddress peer;
  if (getpeername(fd, peer.get(), &peer.size) != 0 || peer.ToString() != found.mapped().to)
    return std::nullopt;
  return found.mapped().token;
}

std::optional<Greeting> GreetingFor(const SocketAddress& to) {
  Sockets& all = sockets();
  std::lock_guard lock(all.mutex);
  const auto it = all.doors.find(to.ToString());
  if (it == all.doors.end()) return std::nullopt;
  return Greeting{it->first, MakeToken(it->second.secret, it->second.salt)};
}

// Breaks the connection when bytes stay unacknowledged for so long: the path is cut.
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

void SetNextListener(Listener* listener) { next_listener = listener; }

void ShowTokens(const Listener* user, const GateAddress& gate, const std::string& secret) {
  Sockets& all = sockets();
  std::lock_guard lock(all.mutex);
  Door& known = all.doors[gate.socket.ToString()];
  known.users.insert(user);
  known.salt = gate.salt;
  known.secret = secret;
}

void Forget(const Listener* listener) {
  Sockets& all = sockets();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.listeners, [&](const auto& entry) { return entry.second == listener; });
  for (auto& [address, door] : all.doors) door.users.erase(listener);
  std::erase_if(all.doors, [](const auto& entry) { return entry.second.users.empty(); });
  all.listener_count = static_cast<int>(all.listeners.size());
}

}  // namespace agmm::transport

// Below: in front of libc's own, for this process. UCX finds its addresses, and opens and uses its
// sockets, with them (ucs/sys/sock.c, uct/tcp/tcp_iface.c).
using namespace agmm;
using namespace agmm::transport;

extern "C" {

int getifaddrs(ifaddrs** list) noexcept {
  static const auto next = Next<decltype(getifaddrs)>("getifaddrs");
  const int result = next(list);
  if (result != 0 || shown_address == nullptr) return result;
  // Kept in the list, which is freed as a whole, as interfaces without an address.
  for (ifaddrs* entry = *list; entry != nullptr; entry = entry->ifa_next) {
    const auto has = SocketAddress::Of(entry->ifa_addr);
    if (has.has_value() && has->ip() != shown_address->ip()) entry->ifa_addr = nullptr;
  }
  return result;
}

int listen(int fd, int backlog) {
  static const auto next = Next<decltype(listen)>("listen");
  Listener* const listener = std::exchange(next_listener, nullptr);
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
  const Listener* const listener = ListenerOf(fd);
  if (listener == nullptr) return next(fd, address, size);
  Copy(listener->where(), address, size);
  return 0;
}

int accept(int fd, sockaddr* address, socklen_t* size) {
  static const auto next = Next<decltype(accept)>("accept");
  Listener* const listener = ListenerOf(fd);
  if (listener == nullptr) return next(fd, address, size);
  SocketAddress from;
  const int accepted = listener->Accept(&from);
  if (accepted < 0) {
    errno = EAGAIN;
    return -1;
  }
  SetUnspoken(accepted, std::nullopt);
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
    auto greeting = GreetingFor(to);
    if (greeting.has_value()) EndWhenSilent(fd);
    SetUnspoken(fd, std::move(greeting));
  }
  return next(fd, address, size);
}

ssize_t send(int fd, const void* data, size_t size, int flags) {
  static const auto next = Next<decltype(send)>("send");
  if (const auto token = TakeUnspoken(fd); token.has_value()) {
    // Fits into the buffer of a socket that has sent nothing yet.
    if (next(fd, token->data(), token->size(), flags) != static_cast<ssize_t>(token->size())) {
      errno = ECONNRESET;
      return -1;
    }
  }
  return next(fd, data, size, flags);
}

}  // extern "C"
