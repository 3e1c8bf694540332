// Text as code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace agmm {

// Reads one code point of `text` from *at on. False where the bytes are no UTF-8: overlong forms
// and surrogates included.
bool NextCodePoint(absl::string_view text, size_t* at, uint32_t* code);

// The first byte from which on `text` is no UTF-8; absent: it is.
std::optional<size_t> NoUtf8From(absl::string_view text);

}  // namespace agmm
