#include "daemon/transport/ucx_config.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm::transport {
namespace {

constexpr int64_t kRendezvousBytes = 64 << 10;

using UcxVersion = std::pair<unsigned, unsigned>;
// Before, ucp_config_modify wants the options of the TCP transport without its name, unlike the
// environment; with the name it warns and ignores them.
constexpr UcxVersion kNamesHavePrefix = {1, 17};
// UCX 1.13 hands an event of a batch to an endpoint that an earlier event of the batch has freed,
// when a peer comes back that was cut off (NOTES.md). Later versions before this one were not
// tried.
constexpr UcxVersion kBatchesAreSafe = {1, 22};

UcxVersion Version() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return {major, minor};
}

// The name of the interface that has `address`.
absl::StatusOr<std::string> InterfaceOf(const std::string& address) {
  uint8_t wanted[sizeof(in6_addr)];
  const int family = inet_pton(AF_INET, address.c_str(), wanted) == 1 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && inet_pton(AF_INET6, address.c_str(), wanted) != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "bind address \"%s\" is not an IP address; give one of this host's", address));
  }
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return absl::InternalError(absl::StrCat("getifaddrs: ", std::strerror(errno)));
  }
  std::string found, known;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const int has = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    if (has != AF_INET && has != AF_INET6) continue;
    const void* const bytes = has == AF_INET ? reinterpret_cast<const std::byte*>(entry->ifa_addr) +
                                                   offsetof(sockaddr_in, sin_addr)
                                             : reinterpret_cast<const std::byte*>(entry->ifa_addr) +
                                                   offsetof(sockaddr_in6, sin6_addr);
    char text[INET6_ADDRSTRLEN] = "";
    inet_ntop(has, bytes, text, sizeof(text));
    absl::StrAppend(&known, known.empty() ? "" : ", ", text, " on ", entry->ifa_name);
    // All of 127.0.0.0/8 belongs to the loopback interface, whatever address it shows.
    const bool loopback =
        (entry->ifa_flags & IFF_LOOPBACK) && family == AF_INET && wanted[0] == 127;
    const size_t size = family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
    if (has == family && (loopback || std::memcmp(bytes, wanted, size) == 0))
      found = entry->ifa_name;
  }
  freeifaddrs(list);
  if (found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("no interface has the bind address %s; this host has %s", address, known));
  }
  return found;
}

}  // namespace

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> UcxSettings(
    const TransportOptions& options) {
  AGMM_ASSIGN_OR_RETURN(
      std::string device,
      InterfaceOf(options.bind_address.empty() ? "127.0.0.1" : options.bind_address));
  // UCX looks for interfaces in sysfs. It starts without sysfs, too, but then reaches no peer.
  const std::string entry = absl::StrCat("/sys/class/net/", device);
  if (access(entry.c_str(), F_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s does not exist, so UCX cannot use the interface %s; mount sysfs on "
                        "/sys in this container or network namespace",
                        entry, device));
  }
  std::vector<std::pair<std::string, std::string>> settings = {
      // TCP alone, also between processes of one host: shared memory did not report a killed peer
      // within a minute (NOTES.md).
      {"TLS", "tcp,self"},
      // Without it UCX chooses an interface itself, for example a container bridge.
      {"NET_DEVICES", device},
      {"HANDLE_ERRORS", "none"},
      {"TCP_TX_SEG_SIZE", "64k"},
      // Bytes in the socket delay all later ones; the kernel's own choice grows to several
      // milliseconds of a link (NOTES.md).
      {"TCP_SNDBUF", "1m"},
      // Connecting to an unreachable host must not block the progress thread.
      {"TCP_CONN_NB", "y"},
      // Otherwise the sender of a large message writes into the receiver's memory: late bytes of a
      // broken connection may still arrive there, and links carry less when both directions are
      // busy (NOTES.md).
      {"TCP_PUT_ENABLE", "n"},
      // Messages of this size and more go by rendezvous, straight into place.
      {"RNDV_THRESH", absl::StrCat(kRendezvousBytes)},
  };
  if (Version() < kBatchesAreSafe) settings.emplace_back("TCP_MAX_POLL", "1");
  settings.insert(settings.end(), options.other_settings.begin(), options.other_settings.end());
  if (Version() < kNamesHavePrefix) {
    for (auto& [name, value] : settings) name = std::string(absl::StripPrefix(name, "TCP_"));
  }
  return settings;
}

std::string UcxDescription() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return absl::StrFormat("ucx %d.%d.%d, tcp, active messages, rendezvous from %s", major, minor,
                         release, FormatBytes(kRendezvousBytes));
}

void LeaveOutCuda() {
  if (std::getenv("UCX_MODULES") == nullptr) ucs_global_opts_set_value("MODULES", "^cuda");
}

void ReturnSignals() {
  if (std::getenv("UCX_HANDLE_ERRORS") != nullptr) return;
  for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP}) {
    struct sigaction action;
    Dl_info owner;
    // Only UCX's own handlers, because the process may have installed others since.
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_DFL &&
        action.sa_handler != SIG_IGN &&
        dladdr(reinterpret_cast<void*>(action.sa_handler), &owner) != 0 &&
        owner.dli_fname != nullptr && absl::StrContains(owner.dli_fname, "libucs")) {
      ucs_debug_disable_signal(signal);
    }
  }
}

}  // namespace agmm::transport
