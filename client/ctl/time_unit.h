// A unit for the times of a table.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace agmm {

struct TimeUnit {
  const char* name;
  double ns;
};

// Returns ms if no time that matters is below `least_ns` and this is at least 10 ms, else us.
inline TimeUnit TimeUnitOf(int64_t least_ns) {
  return least_ns < 10'000'000 ? TimeUnit{"us", 1e3} : TimeUnit{"ms", 1e6};
}

// "12.3", "1234".
inline std::string InUnit(int64_t ns, const TimeUnit& unit) {
  const double value = static_cast<double>(ns) / unit.ns;
  return value < 1000 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.0f", value);
}

}  // namespace agmm
