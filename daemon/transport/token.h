// The one-time token with which a connection begins: a mark, a random number, and the keyed hash of
// the number.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm::transport {

inline constexpr absl::string_view kTokenMark = "agmmgat1";
inline constexpr size_t kSaltBytes = 16, kTokenNumberBytes = 16, kTokenHashBytes = 32;
inline constexpr size_t kTokenBytes = kTokenMark.size() + kTokenNumberBytes + kTokenHashBytes;

// Returns a new token for the listener that has `salt`.
std::string MakeToken(absl::string_view secret, absl::string_view salt);
// Returns the token's number. Errors: PERMISSION_DENIED unless it was made with this secret and
// salt.
absl::StatusOr<std::string> CheckToken(absl::string_view token, absl::string_view secret,
                                       absl::string_view salt);

}  // namespace agmm::transport
