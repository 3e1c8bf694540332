// Text as code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace agmm {

// Reads one code point of `text` from *at on. False where the bytes are invalid UTF-8, overlong
// forms and surrogates included.
bool NextCodePoint(absl::string_view text, size_t* at, uint32_t* code);

// The position of the first byte of `text` that is invalid UTF-8, if there is one.
std::optional<size_t> NoUtf8From(absl::string_view text);

// True for control characters, line and paragraph separators and changes of text direction, which
// break the line or the table around them.
bool IsControl(uint32_t code);

// Returns `text` with its control characters (except newlines) and the bytes that are not UTF-8 as
// "\x1b", so that none reaches a terminal or a log.
std::string Printable(absl::string_view text);

}  // namespace agmm
