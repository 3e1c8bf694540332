#include "daemon/config/reachable.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/host_port.h"
#include "kernels/base/socket_address.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

bool AreLoopback(const std::vector<SocketAddress>& addresses) {
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const SocketAddress& one) { return one.is_loopback(); });
}

bool AreLoopback(const std::vector<std::string>& ips) {
  return !ips.empty() && std::all_of(ips.begin(), ips.end(), [](const std::string& ip) {
    const auto address = SocketAddress::OfIp(ip);
    return address.has_value() && address->is_loopback();
  });
}

// Returns true if `host` has only loopback addresses on this host. False for an unknown name.
bool IsLoopback(const std::string& host) {
  const absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(host, 0);
  return addresses.ok() && AreLoopback(*addresses);
}

// `used` are the addresses of `host` at which this daemon listens.
absl::Status CheckHost(const Config& config, const std::string& host,
                       const std::vector<SocketAddress>& used) {
  if (!AreLoopback(used)) return absl::OkStatus();
  for (int node = 0; node < static_cast<int>(config.nodes.size()); ++node) {
    if (node == config.self) continue;
    AGMM_ASSIGN_OR_RETURN(const HostPort other, ParseHostPort(config.nodes[node].address, 0));
    if (IsLoopback(other.host)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is a loopback address on this host, which %s cannot reach; give node %s an "
        "address of the network in world.node, or set local.transport_address and local.listen. "
        "Debian gives 127.0.1.1 to the host's own name in /etc/hosts",
        WithIps(host, IpsOf(used)), config.Describe(node), config.node().name));
  }
  return absl::OkStatus();
}

}  // namespace

Config ResolveNodes(Config config) {
  for (const int node : {0, config.self}) {
    const absl::StatusOr<HostPort> at = ParseHostPort(config.nodes[node].address, 0);
    if (!at.ok()) continue;  // a world of one node may have no address
    const absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(at->host, at->port);
    if (addresses.ok()) config.nodes[node].ips = IpsOf(*addresses);
  }
  return config;
}

std::string LoopbackPeer(const Config& config) {
  const NodeConfig& first = config.nodes[0];
  if (config.is_sequencer() || !AreLoopback(first.ips) || AreLoopback(config.node().ips)) return "";
  return absl::StrFormat(
      "node %s's address, %s, is a loopback address on this host, so this daemon looks for node %s "
      "here; if that runs on another host, correct the name on this one (/etc/hosts, DNS), or give "
      "an IP address in world.node",
      first.name, WithIps(first.address, first.ips), first.name);
}

absl::Status CheckReachable(const Config& config) {
  if (config.nodes.size() == 1) return absl::OkStatus();
  AGMM_ASSIGN_OR_RETURN(std::vector<SocketAddress> own, Resolve(config.transport_address, 0));
  own.resize(1);  // the transport uses the first one
  AGMM_RETURN_IF_ERROR(CheckHost(config, config.transport_address, own));
  if (config.listen_peers.empty()) return absl::OkStatus();
  AGMM_ASSIGN_OR_RETURN(const HostPort peers, ParseHostPort(config.listen_peers, 0));
  AGMM_ASSIGN_OR_RETURN(own, Resolve(peers.host, 0));
  return CheckHost(config, peers.host, own);
}

}  // namespace agmm
