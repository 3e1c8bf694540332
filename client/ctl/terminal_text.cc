#include "client/ctl/terminal_text.h"

#include <locale.h>
#include <wchar.h>

#include <cstdint>
#include <limits>

#include "kernels/base/utf8.h"

namespace agmm {
namespace {

struct Extent {
  size_t bytes = 0, columns = 0;
};

// The extent of as many whole characters from the beginning of `text` as fit into `columns`.
Extent ExtentOfFirst(absl::string_view text, size_t columns) {
  // The widths are those of wcwidth in this locale, whatever the user's locale is. If the locale is
  // missing, or wcwidth does not know a character, its width is one.
  static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", /*base=*/nullptr);
  const locale_t before = uselocale(utf8);
  Extent extent;
  while (extent.bytes < text.size()) {
    size_t end = extent.bytes;
    uint32_t code = 0;
    int width = -1;
    if (NextCodePoint(text, &end, &code)) {
      width = wcwidth(static_cast<wchar_t>(code));
    } else {
      ++end;
    }
    const size_t sum = extent.columns + (width < 0 ? 1 : width);
    if (sum > columns) break;
    extent = {end, sum};
  }
  uselocale(before);
  return extent;
}

}  // namespace

size_t ColumnsOf(absl::string_view text) {
  return ExtentOfFirst(text, std::numeric_limits<size_t>::max()).columns;
}

absl::string_view FirstColumns(absl::string_view text, size_t columns) {
  return text.substr(0, ExtentOfFirst(text, columns).bytes);
}

}  // namespace agmm
