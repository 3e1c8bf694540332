#include "kernels/base/utf8.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace agmm {

bool NextCodePoint(absl::string_view text, size_t* at, uint32_t* code) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(*at);
  const int length = first < 0x80   ? 1
                     : first < 0xc2 ? 0
                     : first < 0xe0 ? 2
                     : first < 0xf0 ? 3
                     : first < 0xf5 ? 4
                                    : 0;
  if (length == 0 || text.size() - *at < static_cast<size_t>(length)) return false;
  *code = length == 1 ? first : first & (0x7f >> length);
  for (int i = 1; i < length; ++i) {
    if ((byte(*at + i) & 0xc0) != 0x80) return false;
    *code = *code << 6 | (byte(*at + i) & 0x3f);
  }
  const uint32_t least = length == 3 ? 0x800 : length == 4 ? 0x10000 : 0;
  if (*code < least || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000)) return false;
  *at += length;
  return true;
}

std::optional<size_t> NoUtf8From(absl::string_view text) {
  uint32_t code = 0;
  for (size_t at = 0; at < text.size();)
    if (!NextCodePoint(text, &at, &code)) return at;
  return std::nullopt;
}

bool IsControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

std::string Printable(absl::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    uint32_t code = 0;
    const bool valid = NextCodePoint(text, &at, &code);
    if (!valid) ++at;
    if (valid && (code == '\n' || !IsControl(code))) {
      absl::StrAppend(&result, text.substr(begin, at - begin));
      continue;
    }
    for (char byte : text.substr(begin, at - begin))
      absl::StrAppendFormat(&result, "\\x%02x", static_cast<unsigned char>(byte));
  }
  return result;
}

}  // namespace agmm
