// Tables and lists of fields as text that fits a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/base/utf8.h"

namespace agmm {

// Lines have at most 100 columns until one of these is called; a longer word is not broken. Tables
// take the whole width of a terminal, and any width in a pipe or a file; fields and other text take
// at most 100 columns. Call once, before any output.
void FitLinesToOutput();
// Tables take `columns`, but at least 60.
void FitLinesTo(size_t columns);
// Returns the columns of a line of fields and other text.
size_t TextColumns();

struct Column {
  enum Kind {
    kNumber,   // aligned right
    kText,     // aligned left
    kLong,     // text that is shortened if the table is too wide, but not below 16 columns
    kWrapped,  // the last column: text that is wrapped if the table is too wide
  };

  std::string name;
  std::string unit = {};
  Kind kind = kNumber;
};
inline Column Number(std::string name, std::string unit = "") { return {name, unit}; }
inline Column Words(std::string name) { return {name, "", Column::kText}; }
inline Column LongWords(std::string name) { return {name, "", Column::kLong}; }
inline Column WrappedWords(std::string name) { return {name, "", Column::kWrapped}; }

// Aligned columns, with a row for their units. If they do not fit into a line even after
// shortening, the rest form a second table below, which repeats the first column.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Adds a cell to each column, empty where `cells` has too few. `note` is printed below the row,
  // wrapped. Control characters of both are escaped.
  void AddRow(std::vector<std::string> cells, std::string note = "");
  bool empty() const { return rows_.empty(); }
  // Returns a line for the names, one for the units if there are any, and one for each row, without
  // trailing blanks.
  std::string ToString() const;

 private:
  struct Row {
    std::vector<std::string> cells;
    std::string note;
  };

  // The columns of each of the tables, narrowed until they fit.
  std::vector<std::vector<size_t>> Parts(std::vector<size_t>* widths) const;
  // Narrows the long and wrapped columns of `part` until a line fits or none can be narrowed
  // further. Returns true if it fits.
  bool Shorten(const std::vector<size_t>& part, std::vector<size_t>* widths) const;
  std::string LineText(const Row& line, const std::vector<size_t>& part,
                       const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

// A name and a text a line; texts are wrapped below themselves.
class Fields {
 public:
  // Control characters of `text` are escaped; newlines begin lines.
  void Add(std::string name, absl::string_view text) {
    fields_.emplace_back(std::move(name), Printable(text));
  }
  std::string ToString() const;

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

// Returns `text` in lines of at most `width` columns, unless a word is longer.
std::string Wrap(absl::string_view text, size_t width);
// Wraps into lines as wide as those of tables.
std::string Wrap(absl::string_view text);

// The columns that `text` takes on a terminal. A wide East Asian character takes two of them, a
// combining mark none.
size_t ColumnsOf(absl::string_view text);
// Returns as many whole characters from the beginning of `text` as fit into `columns`.
absl::string_view FirstColumns(absl::string_view text, size_t columns);

}  // namespace agmm
