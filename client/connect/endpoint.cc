#include "client/connect/endpoint.h"

#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "kernels/base/host_port.h"

namespace agmm {
namespace {

// The kernel's limit, without the terminating zero.
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

absl::StatusOr<Endpoint> OfSocket(absl::string_view path, const Wording& wording) {
  if (path.empty() || path.size() > kMaxSocketPath) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the socket path \"%s\" has %d characters; it must have 1 to %d", path,
                        path.size(), kMaxSocketPath));
  }
  const std::string target = absl::StrCat("unix:", path);
  return Endpoint{target, target, std::string(path), wording};
}

absl::StatusOr<Endpoint> OfHost(absl::string_view text, const Wording& wording) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(text, 1);
  if (!parsed.ok())
    return absl::InvalidArgumentError(absl::StrCat(parsed.status().message(), ", or unix:/path"));
  return Endpoint{std::string(text), absl::StrCat("dns:///", text), "", wording};
}

}  // namespace

absl::StatusOr<Endpoint> ResolveEndpoint(absl::string_view given, const Wording& wording) {
  std::string text(given);
  if (text.empty()) {
    if (const char* env = std::getenv("AGMM_ENDPOINT"); env != nullptr) text = env;
  }
  if (text.empty() && geteuid() == 0) text = "/run/agmm/agmmd.sock";
  if (text.empty()) {
    const char* directory = std::getenv("XDG_RUNTIME_DIR");
    if (directory == nullptr || *directory == '\0') {
      return absl::InvalidArgumentError(
          absl::StrFormat("XDG_RUNTIME_DIR is not set, so no default socket is known; give the "
                          "endpoint of a daemon%s: host:port or unix:/path",
                          wording.endpoint));
    }
    text = absl::StrCat(directory, "/agmm/agmmd.sock");
  }
  if (absl::c_any_of(text, absl::ascii_iscntrl)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is not an endpoint, because it has a control character; write "
                        "host:port, [v6]:port or unix:/path",
                        absl::CHexEscape(text)));
  }
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    // As in a URL.
    if (absl::StartsWith(rest, "//")) rest.remove_prefix(2);
    return OfSocket(rest, wording);
  }
  if (absl::StartsWith(rest, "/") || absl::StartsWith(rest, "./") || absl::StartsWith(rest, "../"))
    return OfSocket(rest, wording);
  return OfHost(rest, wording);
}

}  // namespace agmm
