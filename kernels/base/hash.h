// A stable 64-bit hash (FNV-1a). Guards against accidents (two daemons that planned differently),
// not against attackers.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace agmm {

constexpr uint64_t Fnv1a(absl::string_view bytes, uint64_t seed = 0xcbf29ce484222325ull) {
  for (char c : bytes) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return seed;
}

// 16 lower-case hex digits.
inline std::string HashHex(uint64_t hash) { return absl::StrFormat("%016x", hash); }

}  // namespace agmm
