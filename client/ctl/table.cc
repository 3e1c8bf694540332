#include "client/ctl/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace agmm {

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<std::vector<std::string>> lines(2);
  for (const Column& column : columns_) {
    lines[0].push_back(column.name);
    lines[1].push_back(column.unit);
  }
  if (std::all_of(columns_.begin(), columns_.end(), [](const Column& c) { return c.unit.empty(); }))
    lines.pop_back();
  lines.insert(lines.end(), rows_.begin(), rows_.end());
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string result;
  for (const auto& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string padding(widths[i] - line[i].size(), ' ');
      absl::StrAppend(&text, i == 0 ? "" : "  ", columns_[i].text ? "" : padding, line[i],
                      columns_[i].text ? padding : "");
    }
    absl::StripTrailingAsciiWhitespace(&text);
    absl::StrAppend(&result, text, "\n");
  }
  return result;
}

}  // namespace agmm
