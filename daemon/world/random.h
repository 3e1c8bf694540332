// Random names: incarnations, keys, sessions.
#pragma once

#include <string>

namespace agmm {

// `count` bytes from the kernel.
std::string RandomBytes(int count);
// 2 * `count` lower-case hex digits.
std::string RandomHex(int count);
std::string ToHex(const std::string& bytes);

}  // namespace agmm
