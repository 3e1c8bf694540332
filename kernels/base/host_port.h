// Hosts and ports as people write them, and the addresses that they stand for.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/base/socket_address.h"

namespace agmm {

struct HostPort {
  std::string host;  // as ParseHost returns it
  int port = 0;
  // "10.0.0.1:7101", "[fd00::1]:7101", "a.example.org:7101".
  std::string ToString() const;
};

// Parses a name or an IP address. Equal hosts give equal text: names become lower case, IPv6
// addresses lose their brackets and get their shortest form. Errors: INVALID_ARGUMENT, one
// sentence.
absl::StatusOr<std::string> ParseHost(absl::string_view text);

// Parses "host:port" or "[v6]:port", with a port of at least `min_port`. Errors: as ParseHost.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, int min_port);

// Checks that `host`, from ParseHost, can be an address at which other hosts find this one. Errors:
// INVALID_ARGUMENT for a host that stands for all addresses, or is valid on one link only.
absl::Status CheckHasOneMeaning(const std::string& host);

// Returns the addresses of `host`, at least one, with `port`, from the system's resolver, which may
// block for seconds. Errors: INVALID_ARGUMENT for a name without any.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, int port);

// The text of each address: "10.0.0.1".
std::vector<std::string> IpsOf(const std::vector<SocketAddress>& addresses);

// "a.example.org:7101 (10.0.0.1, fd00::1)", or `address` alone if it is an IP address itself or
// `ips` is empty.
std::string WithIps(const std::string& address, const std::vector<std::string>& ips);

}  // namespace agmm
