#include "daemon/config/reachable.h"

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/host_port.h"
#include "kernels/base/socket_address.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// True if `host` stands for a loopback address here. A name that is not known here does not.
bool IsLoopback(const std::string& host) {
  const absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(host, 0);
  return addresses.ok() && addresses->front().is_loopback();
}

absl::Status CheckHost(const Config& config, const std::string& host) {
  AGMM_ASSIGN_OR_RETURN(const std::vector<SocketAddress> own, Resolve(host, 0));
  if (!own.front().is_loopback()) return absl::OkStatus();
  for (int node = 0; node < static_cast<int>(config.nodes.size()); ++node) {
    if (node == config.self) continue;
    AGMM_ASSIGN_OR_RETURN(const HostPort other, ParseHostPort(config.nodes[node].address, 0));
    if (IsLoopback(other.host)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is a loopback address on this host, which %s cannot reach; give node %s an "
        "address of the network in world.node, or set local.transport_address and local.listen. "
        "Debian gives 127.0.1.1 to the host's own name in /etc/hosts",
        WithIp(host, own.front().ip()), config.Describe(node), config.node().name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReachable(const Config& config) {
  if (config.nodes.size() == 1) return absl::OkStatus();
  AGMM_RETURN_IF_ERROR(CheckHost(config, config.transport_address));
  if (config.listen_peers.empty()) return absl::OkStatus();
  AGMM_ASSIGN_OR_RETURN(const HostPort peers, ParseHostPort(config.listen_peers, 0));
  return CheckHost(config, peers.host);
}

}  // namespace agmm
