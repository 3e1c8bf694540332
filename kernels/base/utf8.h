// Text as code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace agmm {

// Reads one code point of `text` at *at, and advances *at. Returns false if the bytes are invalid
// UTF-8, which includes overlong forms and surrogates.
bool NextCodePoint(absl::string_view text, size_t* at, uint32_t* code);

// Returns the position of the first byte of `text` that is invalid UTF-8, if there is one.
std::optional<size_t> NoUtf8From(absl::string_view text);

// Returns true for control characters, line and paragraph separators and changes of text direction,
// which would break the surrounding line or table.
bool IsControl(uint32_t code);

// Returns `text` with its control characters (except newlines) and the bytes that are not UTF-8 as
// "\x1b", so that none of them reaches a terminal or a log.
std::string Printable(absl::string_view text);

}  // namespace agmm
