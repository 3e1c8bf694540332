#include "daemon/transport/token.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

std::optional<std::string> CheckToken(absl::string_view token, absl::string_view secret,
                                      absl::string_view salt) {
  if (token.size() != kTokenBytes || !absl::StartsWith(token, kTokenMark)) return std::nullopt;
  const absl::string_view number = token.substr(kTokenMark.size(), kTokenNumberBytes);
  const absl::string_view hash = token.substr(kTokenMark.size() + kTokenNumberBytes);
  if (!SameHash(hash, Hash(secret, salt, number))) return std::nullopt;
  return std::string(number);
}

}  // namespace agmm::transport
