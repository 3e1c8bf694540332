#include "daemon/transport/ucx_config.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/debug.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm::transport {
namespace {

// The name of the interface that has `address`.
absl::StatusOr<std::string> InterfaceOf(const std::string& address) {
  in_addr v4;
  in6_addr v6;
  const bool is_v4 = inet_pton(AF_INET, address.c_str(), &v4) == 1;
  if (!is_v4 && inet_pton(AF_INET6, address.c_str(), &v6) != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "bind address \"%s\" is not an IP address; give one of this host's", address));
  }
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return absl::InternalError(absl::StrCat("getifaddrs: ", std::strerror(errno)));
  }
  std::string found, known;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    bool same = false;
    if (entry->ifa_addr->sa_family == AF_INET) {
      const auto& have = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
      inet_ntop(AF_INET, &have, text, sizeof(text));
      // All of 127.0.0.0/8 is the loopback's, whatever address it shows.
      const bool loopback = (entry->ifa_flags & IFF_LOOPBACK) && (ntohl(v4.s_addr) >> 24) == 127;
      same = is_v4 && (have.s_addr == v4.s_addr || loopback);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto& have = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      inet_ntop(AF_INET6, &have, text, sizeof(text));
      same = !is_v4 && std::memcmp(&have, &v6, sizeof(v6)) == 0;
    } else {
      continue;
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", text, " on ", entry->ifa_name);
    if (same) found = entry->ifa_name;
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
  // Where UCX looks for interfaces. It starts without them, too, and then reaches nobody.
  const std::string entry = absl::StrCat("/sys/class/net/", device);
  if (access(entry.c_str(), F_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is not there, so UCX cannot use the interface %s; mount sysfs on /sys "
                        "in this container or "
                        "network namespace",
                        entry, device));
  }
  // Options of a UCX transport are known to ucp_config_modify without the transport's name,
  // contrary to the environment: UCX_TCP_CONN_NB is CONN_NB here. With it they are ignored with a
  // warning.
  std::vector<std::pair<std::string, std::string>> settings = {
      {"TLS", options.force_tcp ? "tcp,self" : "tcp,self,sysv,posix"},
      // Without it UCX takes whatever interface it likes best, a container bridge for one.
      {"NET_DEVICES", device},
      {"HANDLE_ERRORS", "none"},
      {"TX_SEG_SIZE", "64k"},
      // What lies in the socket delays what comes behind it; the kernel's own choice grows to
      // several milliseconds of a link (NOTES.md).
      {"SNDBUF", "1m"},
      // A connect to a host that is gone must not hold up the progress thread.
      {"CONN_NB", "y"},
      {"PUT_ENABLE", options.tcp_put ? "y" : "n"},
  };
  if (!options.force_tcp) settings.emplace_back("MM_ERROR_HANDLING", "y");
  if (!options.rndv_scheme.empty()) settings.emplace_back("RNDV_SCHEME", options.rndv_scheme);
  if (options.rndv_threshold_bytes > 0) {
    settings.emplace_back("RNDV_THRESH", absl::StrCat(options.rndv_threshold_bytes));
  }
  return settings;
}

std::string UcxDescription(const TransportOptions& options) {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return absl::StrFormat(
      "ucx %d.%d.%d, %s, active messages%s", major, minor, release,
      options.force_tcp ? "tcp" : "tcp and shared memory",
      options.rndv_threshold_bytes > 0
          ? absl::StrFormat(", rendezvous from %s", FormatBytes(options.rndv_threshold_bytes))
          : "");
}

void ReturnSignals() {
  if (std::getenv("UCX_HANDLE_ERRORS") != nullptr) return;
  for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP}) {
    struct sigaction action;
    Dl_info owner;
    // Only where the handler is UCX's: somebody may have put in another one since.
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_DFL &&
        action.sa_handler != SIG_IGN &&
        dladdr(reinterpret_cast<void*>(action.sa_handler), &owner) != 0 &&
        owner.dli_fname != nullptr && absl::StrContains(owner.dli_fname, "libucs")) {
      ucs_debug_disable_signal(signal);
    }
  }
}

}  // namespace agmm::transport
