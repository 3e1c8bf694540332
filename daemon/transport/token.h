// The one-time token with which a connection begins: a mark, a random number, and the keyed hash of
// the number.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "kernels/base/keyed_hash.h"

namespace agmm::transport {

inline constexpr absl::string_view kTokenMark = "agmmgat1";
inline constexpr size_t kSaltBytes = 16, kTokenNumberBytes = 16;
inline constexpr size_t kTokenBytes = kTokenMark.size() + kTokenNumberBytes + kKeyedHashBytes;

// Returns a new token for the listener that has `salt`.
std::string MakeToken(absl::string_view secret, absl::string_view salt);
// Returns the token's number, or nothing if it was not made with this secret and salt.
std::optional<std::string> CheckToken(absl::string_view token, absl::string_view secret,
                                      absl::string_view salt);

}  // namespace agmm::transport
