#include "daemon/transport/ucx_config.h"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <signal.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm::transport {
namespace {

constexpr int64_t kRendezvousBytes = 64 << 10;

using UcxVersion = std::array<unsigned, 3>;
// Before this version, ucp_config_modify expects the options of the TCP transport without its name,
// unlike the environment; with the name it warns and ignores them.
constexpr UcxVersion kNamesHavePrefix = {1, 17, 0};
// When a peer that was cut off comes back, UCX 1.13 passes an event of a batch to an endpoint that
// an earlier event of the batch has freed (NOTES.md). Versions between that and this one were not
// tried.
constexpr UcxVersion kBatchesAreSafe = {1, 22, 0};

UcxVersion Version() {
  UcxVersion version;
  ucp_get_version(&version[0], &version[1], &version[2]);
  return version;
}

}  // namespace

absl::StatusOr<LocalAddress> FindLocalAddress(const std::string& ip) {
  std::optional<SocketAddress> wanted = SocketAddress::OfIp(ip);
  if (!wanted.has_value()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the transport's address \"%s\" is not an IP address; give one of this host's", ip));
  }
  if (wanted->is_link_local()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the transport's address %s is link-local, which UCX cannot use; give another address of "
        "this host",
        ip));
  }
  if (wanted->bytes.ss_family == AF_INET && wanted->is_loopback())
    wanted = SocketAddress::OfIp("127.0.0.1");
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    return absl::InternalError(absl::StrCat("getifaddrs: ", std::strerror(errno)));
  const absl::Cleanup free_list = [list] { freeifaddrs(list); };
  std::string known;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const auto has = SocketAddress::Of(entry->ifa_addr);
    if (!has.has_value()) continue;
    if (has->ip() == wanted->ip()) {
      // UCX skips such an interface, and then has no transport.
      constexpr unsigned kUsable = IFF_UP | IFF_RUNNING;
      if ((entry->ifa_flags & kUsable) != kUsable) {
        return absl::UnavailableError(absl::StrFormat(
            "the interface %s, which has the transport's address %s, is down or has no link; bring "
            "it up, then start agmmd again",
            entry->ifa_name, ip));
      }
      return LocalAddress{entry->ifa_name, *wanted};
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", has->ip(), " on ", entry->ifa_name);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("no interface has the transport's address %s; this host has %s", ip, known));
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> UcxSettings(
    const TransportOptions& options, const std::string& device) {
  // UCX searches for interfaces in sysfs. Without sysfs it starts, but reaches no peer.
  const std::string entry = absl::StrCat("/sys/class/net/", device);
  if (access(entry.c_str(), F_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s does not exist, so UCX cannot use the interface %s; mount sysfs on "
                        "/sys in this container or network namespace",
                        entry, device));
  }
  std::vector<std::pair<std::string, std::string>> settings = {
      // Only TCP, even between processes of one host, because shared memory did not report a killed
      // peer within a minute (NOTES.md).
      {"TLS", "tcp,self"},
      // Without this setting UCX chooses an interface itself, for example a container bridge. Of
      // this interface's addresses it uses the one that ShownAddress shows (handshake_listener.h).
      {"NET_DEVICES", device},
      {"HANDLE_ERRORS", "none"},
      {"TCP_TX_SEG_SIZE", "64k"},
      // Bytes in the socket delay all later ones, and the kernel's default grows to several
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
  const auto [major, minor, release] = Version();
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
    // Removes only UCX's own handlers, because the process may have installed others since.
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_DFL &&
        action.sa_handler != SIG_IGN &&
        dladdr(reinterpret_cast<void*>(action.sa_handler), &owner) != 0 &&
        owner.dli_fname != nullptr && absl::StrContains(owner.dli_fname, "libucs")) {
      ucs_debug_disable_signal(signal);
    }
  }
}

}  // namespace agmm::transport
