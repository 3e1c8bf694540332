#include "kernels/base/units.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace agmm {

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 4) value /= 1024, ++unit;
  if (value == std::floor(value)) return absl::StrFormat("%.0f %s", value, kUnits[unit]);
  return absl::StrFormat("%.2f %s", value, kUnits[unit]);
}

std::string Counted(int64_t count, absl::string_view thing) {
  return absl::StrCat(count, " ", thing, count == 1 ? "" : "s");
}

std::string FormatMicros(double micros) {
  if (std::abs(micros) >= 1e6) return absl::StrFormat("%.3g s", micros / 1e6);
  if (std::abs(micros) >= 1e3) return absl::StrFormat("%.3g ms", micros / 1e3);
  return absl::StrFormat("%.3g us", micros);
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  static constexpr struct {
    absl::string_view suffix;
    int shift;
  } kUnits[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"B", 0}};
  absl::string_view digits = text;
  int shift = 0;
  for (const auto& unit : kUnits) {
    if (absl::ConsumeSuffix(&digits, unit.suffix)) {
      shift = unit.shift;
      break;
    }
  }
  uint64_t count = 0;
  if (!absl::SimpleAtoi(digits, &count) || count > (uint64_t{INT64_MAX} >> shift)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is not a size; write a whole number and a unit, such as 512MiB or 4GiB", text));
  }
  return static_cast<int64_t>(count << shift);
}

}  // namespace agmm
