#include "daemon/transport/token.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/keyed_hash.h"
#include "kernels/base/random.h"

namespace agmm::transport {
namespace {

std::string Hash(absl::string_view secret, absl::string_view salt, absl::string_view number) {
  return KeyedHash(secret, {kTokenMark, salt, number});
}

}  // namespace

std::string MakeToken(absl::string_view secret, absl::string_view salt) {
  const std::string number = RandomBytes(kTokenNumberBytes);
  return absl::StrCat(kTokenMark, number, Hash(secret, salt, number));
}

absl::StatusOr<std::string> CheckToken(absl::string_view token, absl::string_view secret,
                                       absl::string_view salt) {
  if (token.size() == kTokenBytes && absl::StartsWith(token, kTokenMark)) {
    const absl::string_view number = token.substr(kTokenMark.size(), kTokenNumberBytes);
    if (SameHash(token.substr(kTokenMark.size() + kTokenNumberBytes), Hash(secret, salt, number)))
      return std::string(number);
  }
  return absl::PermissionDeniedError(
      "the token was not made with this world's secret for this listener");
}

}  // namespace agmm::transport
