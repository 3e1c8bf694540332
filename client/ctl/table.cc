#include "client/ctl/table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/ctl/terminal_text.h"
#include "kernels/base/utf8.h"

namespace agmm {
namespace {
size_t line_columns = 100;
constexpr size_t kMinLineColumns = 60;
constexpr size_t kGap = 2;
// The width below which a long column is not shortened.
constexpr size_t kMinLongColumns = 8;
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

}  // namespace

void FitLinesToTerminal() {
  winsize window = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
    line_columns = std::clamp<size_t>(window.ws_col, kMinLineColumns, line_columns);
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
  if (std::all_of(columns_.begin(), columns_.end(), [](const Column& c) { return c.unit.empty(); }))
    lines.pop_back();
  lines.insert(lines.end(), rows_.begin(), rows_.end());
  std::vector<size_t> widths(columns_.size(), 0);
  for (const Row& line : lines) {
    for (size_t i = 0; i < line.cells.size(); ++i)
      widths[i] = std::max(widths[i], ColumnsOf(line.cells[i]));
  }
  Shorten(&widths);
  std::string result;
  for (const Row& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.cells.size(); ++i) {
      if (columns_[i].kind == Column::kWrapped) {
        const std::string indent(ColumnsOf(text) + kGap, ' ');
        absl::StrAppend(&text, std::string(kGap, ' '),
                        WrapBehind(indent, line.cells[i], widths[i]));
        continue;
      }
      const std::string cell = Elide(line.cells[i], widths[i]);
      const std::string padding(widths[i] - ColumnsOf(cell), ' ');
      const bool left = columns_[i].kind != Column::kNumber;
      absl::StrAppend(&text, i == 0 ? "" : std::string(kGap, ' '), left ? "" : padding, cell,
                      left ? padding : "");
    }
    absl::StripTrailingAsciiWhitespace(&text);
    absl::StrAppend(&result, text, "\n");
    if (!line.note.empty())
      absl::StrAppend(&result, std::string(kNoteIndent, ' '),
                      Elide(line.note, line_columns - kNoteIndent), "\n");
  }
  return result;
}

// The widest is narrowed first, by one column at a time.
void Table::Shorten(std::vector<size_t>* widths) const {
  size_t total = kGap * (widths->size() - 1);
  for (size_t width : *widths) total += width;
  for (; total > line_columns; --total) {
    size_t widest = widths->size();
    for (size_t i = 0; i < widths->size(); ++i) {
      const bool narrows =
          columns_[i].kind == Column::kLong || columns_[i].kind == Column::kWrapped;
      if (narrows && (*widths)[i] > kMinLongColumns &&
          (widest == widths->size() || (*widths)[i] > (*widths)[widest])) {
        widest = i;
      }
    }
    if (widest == widths->size()) return;
    --(*widths)[widest];
  }
}

std::string Fields::ToString() const {
  size_t indent = 0;
  for (const auto& [name, text] : fields_) indent = std::max(indent, name.size() + 2);
  std::string result;
  for (const auto& [name, text] : fields_) {
    std::string head = name;
    head.resize(indent, ' ');
    absl::StrAppend(&result, head,
                    WrapBehind(std::string(indent, ' '), text, line_columns - indent), "\n");
  }
  return result;
}

std::string Wrap(absl::string_view text) { return Wrap(text, line_columns); }

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

}  // namespace agmm
