// Frames of HTTP/2 (RFC 9113), and fields of HPACK, as a client sends them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace agmm {

inline constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum FrameType : char {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kContinuation = 9
};
inline constexpr char kEndStream = 1, kEndHeaders = 4, kPadded = 8, kHasPriority = 0x20;

inline std::string Bytes(std::initializer_list<int> bytes) {
  std::string text;
  for (int byte : bytes) text += static_cast<char>(byte);
  return text;
}

inline std::string FrameOf(char type, const std::string& payload, char flags = 0,
                           uint32_t stream = 1) {
  const auto size = static_cast<int>(payload.size()), number = static_cast<int>(stream);
  return Bytes({size >> 16, size >> 8, size, type, flags, number >> 24, number >> 16, number >> 8,
                number}) +
         payload;
}

// A field of one byte, and one with a name of its own.
inline const std::string kIndexed = Bytes({0x80 | 32});
inline const std::string kNewName = Bytes({0x40, 3, 'a', 'b', 'c', 2, 'd', 'e'});

}  // namespace agmm
