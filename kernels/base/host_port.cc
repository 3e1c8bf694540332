#include "kernels/base/host_port.h"

#include <netdb.h>

#include <algorithm>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr int kMaxPort = 65535;
constexpr absl::string_view kMapped = "::ffff:";

bool IsPort(absl::string_view text, int min_port, int* port) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, port) && *port >= min_port && *port <= kMaxPort;
}

// Returns true for "127.1", "10.0.0.256" and "0x7f.1", which the system's resolver would complete
// by historical rules.
bool EndsInANumber(absl::string_view host) {
  const size_t dot = host.rfind('.');
  const absl::string_view last = dot == host.npos ? host : host.substr(dot + 1);
  return !last.empty() && (std::all_of(last.begin(), last.end(), absl::ascii_isdigit) ||
                           absl::StartsWithIgnoreCase(last, "0x"));
}

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; }

}  // namespace

std::string HostPort::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrFormat("[%s]:%d", host, port)
                                      : absl::StrFormat("%s:%d", host, port);
}

absl::StatusOr<std::string> ParseHost(absl::string_view text) {
  absl::string_view host = text;
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (bracketed) host = host.substr(1, host.size() - 2);
  const absl::string_view zone = host.substr(std::min(host.find('%'), host.size()));
  const std::string bare(host.substr(0, host.size() - zone.size()));
  if (const auto ip = SocketAddress::OfIp(bare); ip.has_value()) {
    const std::string canonical = ip->ip();
    if (absl::StartsWith(canonical, kMapped) && absl::StrContains(canonical, '.')) {
      return absl::InvalidArgumentError(
          absl::StrFormat("\"%s\" is an IPv4 address in the form of IPv6; write %s", text,
                          canonical.substr(kMapped.size())));
    }
    if (!bracketed || absl::StrContains(canonical, ':')) return absl::StrCat(canonical, zone);
  }
  if (bracketed || absl::StrContains(host, ':')) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is not an IPv6 address; write for example [fd00::1]", text));
  }
  if (EndsInANumber(host)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is not a whole IPv4 address; write four numbers of up to 255, such as 127.0.0.1",
        text));
  }
  if (host.empty() || !std::all_of(host.begin(), host.end(), IsNameCharacter)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is not a host; write its name or its IP address, such as 10.0.0.1", text));
  }
  return absl::AsciiStrToLower(host);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, int min_port) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is not host:port; write for example 10.0.0.1:7101", text));
  }
  const absl::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  HostPort parsed;
  if (absl::StrContains(host, ':') && !absl::EndsWith(host, "]")) {
    // "::1:7101" as a whole is an IPv6 address, too.
    const bool has_port =
        IsPort(port, 1, &parsed.port) && SocketAddress::OfIp(std::string(host)).has_value();
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" has an IPv6 address without brackets; write [%s]:%s", text,
                        has_port ? host : text, has_port ? port : "7101"));
  }
  if (!IsPort(port, min_port, &parsed.port)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is not host:port, because \"%s\" is not a port from %d to %d; write for example "
        "10.0.0.1:7101",
        text, port, min_port, kMaxPort));
  }
  AGMM_ASSIGN_OR_RETURN(parsed.host, ParseHost(host));
  return parsed;
}

absl::Status CheckHasOneMeaning(const std::string& host) {
  const auto ip = SocketAddress::OfIp(host.substr(0, host.find('%')));
  if (!ip.has_value()) return absl::OkStatus();
  if (ip->ip() == "0.0.0.0" || ip->ip() == "::") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s stands for all addresses of a host, so other hosts cannot connect to it; give the "
        "address that they reach (local.listen may be %s)",
        host, ip->ip() == "::" ? "[::]:7101" : "0.0.0.0:7101"));
  }
  if (ip->is_link_local()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is link-local, so it is valid only on one link of one host; give another address of "
        "the host",
        host));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;  // one entry for each address
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s cannot be resolved: %s", host, gai_strerror(error)));
  }
  const absl::Cleanup free_list = [list] { freeaddrinfo(list); };
  std::vector<SocketAddress> addresses;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    std::optional<SocketAddress> address = SocketAddress::Of(at->ai_addr);
    if (!address.has_value()) continue;
    address->set_port(port);
    addresses.push_back(*address);
  }
  if (addresses.empty())
    return absl::InvalidArgumentError(absl::StrFormat("%s has no IP address", host));
  return addresses;
}

std::vector<std::string> IpsOf(const std::vector<SocketAddress>& addresses) {
  std::vector<std::string> ips;
  for (const SocketAddress& address : addresses) ips.push_back(address.ip());
  return ips;
}

std::string WithIps(const std::string& address, const std::vector<std::string>& ips) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address, 0);
  const std::string& host = parsed.ok() ? parsed->host : address;
  if (ips.empty() || ips == std::vector{host}) return address;
  return absl::StrFormat("%s (%s)", address, absl::StrJoin(ips, ", "));
}

}  // namespace agmm
