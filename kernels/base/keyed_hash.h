// HMAC-SHA256: a hash shows that its maker knows the key, without showing the key.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"

namespace agmm {

inline constexpr size_t kKeyedHashBytes = 32;

// Hashes all parts and their lengths, so that ("ab", "c") and ("a", "bc") differ. The first part
// names the purpose, so that a hash made for one does not serve another.
std::string KeyedHash(absl::string_view key, std::initializer_list<absl::string_view> parts);
// Compares in a time that does not depend on the contents.
bool SameHash(absl::string_view a, absl::string_view b);

}  // namespace agmm
