#include "client/ctl/table.h"

#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace agmm {
namespace {

constexpr size_t kMinLineColumns = 60, kMaxTextColumns = 100;
size_t table_columns = kMaxTextColumns, text_columns = kMaxTextColumns;
constexpr size_t kGap = 2;
// The width below which a long column is not shortened.
constexpr size_t kMinLongColumns = 16;
constexpr size_t kNoteIndent = 4;

// Returns `text`, or its beginning and ".." where it has more columns than `width`.
std::string Elide(absl::string_view text, size_t width) {
  if (ColumnsOf(text) <= width) return std::string(text);
  return absl::StrCat(FirstColumns(text, width - 2), "..");
}

// Wraps each line of `text`; all but the first begin with `indent`.
std::string WrapBehind(const std::string& indent, absl::string_view text, size_t width) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) lines.push_back(Wrap(line, width));
  return absl::StrReplaceAll(absl::StrJoin(lines, "\n"), {{"\n", absl::StrCat("\n", indent)}});
}

std::string OnOneLine(absl::string_view text) {
  return absl::StrReplaceAll(Printable(text), {{"\n", "\\n"}});
}

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

void FitLinesTo(size_t columns) {
  table_columns = std::max(columns, kMinLineColumns);
  text_columns = std::min(table_columns, kMaxTextColumns);
}

size_t TextColumns() { return text_columns; }

void FitLinesToOutput() {
  winsize window = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
    FitLinesTo(window.ws_col);
  } else if (!isatty(STDOUT_FILENO)) {
    FitLinesTo(std::numeric_limits<size_t>::max());
  }
}

void Table::AddRow(std::vector<std::string> cells, std::string note) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = OnOneLine(cell);
  rows_.push_back({std::move(cells), OnOneLine(note)});
}

std::string Table::ToString() const {
  std::vector<Row> lines(2);
  for (const Column& column : columns_) {
    lines[0].cells.push_back(column.name);
    lines[1].cells.push_back(column.unit);
  }
  lines.insert(lines.end(), rows_.begin(), rows_.end());
  std::vector<size_t> widths(columns_.size(), 0);
  for (const Row& line : lines) {
    for (size_t i = 0; i < line.cells.size(); ++i)
      widths[i] = std::max(widths[i], ColumnsOf(line.cells[i]));
  }
  std::string result;
  for (const std::vector<size_t>& part : Parts(&widths)) {
    const bool first = result.empty();
    if (!first) result += "\n";
    for (const Row& line : lines) {
      const std::string text = LineText(line, part, widths);
      if (text.empty() && &line == &lines[1]) continue;  // no units
      absl::StrAppend(&result, text, "\n");
      if (!first || line.note.empty()) continue;
      const std::string indent(kNoteIndent, ' ');
      absl::StrAppend(&result, indent, WrapBehind(indent, line.note, table_columns - kNoteIndent),
                      "\n");
    }
  }
  return result;
}

std::string Table::LineText(const Row& line, const std::vector<size_t>& part,
                            const std::vector<size_t>& widths) const {
  std::string text;
  for (const size_t i : part) {
    if (columns_[i].kind == Column::kWrapped) {
      const std::string indent(ColumnsOf(text) + kGap, ' ');
      absl::StrAppend(&text, std::string(kGap, ' '), WrapBehind(indent, line.cells[i], widths[i]));
      continue;
    }
    const std::string cell = Elide(line.cells[i], widths[i]);
    const std::string padding(widths[i] - ColumnsOf(cell), ' ');
    const bool left = columns_[i].kind != Column::kNumber;
    absl::StrAppend(&text, i == part[0] ? "" : std::string(kGap, ' '), left ? "" : padding, cell,
                    left ? padding : "");
  }
  absl::StripTrailingAsciiWhitespace(&text);
  return text;
}

std::vector<std::vector<size_t>> Table::Parts(std::vector<size_t>* widths) const {
  std::vector<size_t> all(columns_.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<size_t> whole = *widths;
  if (Shorten(all, widths)) return {all};
  *widths = whole;
  std::vector<std::vector<size_t>> parts(1);
  size_t total = 0;
  for (const size_t column : all) {
    total += kGap + whole[column];
    if (parts.back().size() > 1 && total - kGap > table_columns) {
      parts.push_back({all[0]});
      total = whole[all[0]] + 2 * kGap + whole[column];
    }
    parts.back().push_back(column);
  }
  for (const std::vector<size_t>& part : parts) Shorten(part, widths);
  return parts;
}

// The widest is narrowed first, by one column at a time.
bool Table::Shorten(const std::vector<size_t>& part, std::vector<size_t>* widths) const {
  size_t total = kGap * (part.size() - 1);
  for (const size_t column : part) total += (*widths)[column];
  for (; total > table_columns; --total) {
    std::optional<size_t> widest;
    for (const size_t i : part) {
      const bool narrows =
          columns_[i].kind == Column::kLong || columns_[i].kind == Column::kWrapped;
      if (narrows && (*widths)[i] > kMinLongColumns &&
          (!widest || (*widths)[i] > (*widths)[*widest]))
        widest = i;
    }
    if (!widest) return false;
    --(*widths)[*widest];
  }
  return true;
}

std::string Fields::ToString() const {
  size_t indent = 0;
  for (const auto& [name, text] : fields_) indent = std::max(indent, name.size() + 2);
  std::string result;
  for (const auto& [name, text] : fields_) {
    std::string head = name;
    head.resize(indent, ' ');
    absl::StrAppend(&result, head,
                    WrapBehind(std::string(indent, ' '), text, text_columns - indent), "\n");
  }
  return result;
}

std::string Wrap(absl::string_view text) { return Wrap(text, text_columns); }

std::string Wrap(absl::string_view text, size_t width) {
  std::string result;
  size_t column = 0;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    const bool first = result.empty();
    const size_t columns = ColumnsOf(word);
    const bool fits = column + 1 + columns <= width;
    absl::StrAppend(&result, first ? "" : fits ? " " : "\n", word);
    column = first || !fits ? columns : column + 1 + columns;
  }
  return result;
}

size_t ColumnsOf(absl::string_view text) {
  return ExtentOfFirst(text, std::numeric_limits<size_t>::max()).columns;
}

absl::string_view FirstColumns(absl::string_view text, size_t columns) {
  return text.substr(0, ExtentOfFirst(text, columns).bytes);
}

}  // namespace agmm
