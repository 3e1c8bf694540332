// Sizes and times for people.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm {

// "1.50 GiB", "512 MiB", "17 B".
std::string FormatBytes(int64_t bytes);
// "1 node", "2 nodes": a count of things whose plural takes an s.
std::string Counted(int64_t count, absl::string_view thing);
// "1.25 s", "83.1 ms", "412 us", from microseconds.
std::string FormatMicros(double micros);
// Parses "4GiB", "512MiB", "64KiB", "123B" or a plain count of bytes. Errors: INVALID_ARGUMENT for
// anything else, and for sizes that do not fit in 63 bits.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace agmm
