// Random names: incarnations, keys, sessions, requests, uploads.
#pragma once

#include <cstdint>
#include <string>

namespace agmm {

// `count` bytes from the kernel, at most 256.
std::string RandomBytes(int count);
// Enough for names that never repeat.
inline constexpr int kIdBytes = 16;
// 2 * `count` lower-case hex digits.
std::string RandomHex(int count);
// 64 random bits, not all 0.
uint64_t RandomId();
std::string ToHex(const std::string& bytes);

}  // namespace agmm
