// Tables and lists of fields as text, and the forms of numbers in them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/base/utf8.h"

namespace agmm {

// Lines of tables and fields have at most 100 columns, or as many as the terminal where stdout is a
// narrower one; a longer word is not broken. Call once, before any output.
void FitLinesToTerminal();

struct Column {
  enum Kind {
    kNumber,   // aligned right
    kText,     // aligned left
    kLong,     // text that is shortened, to 8 columns at the least, where the table is too wide
    kWrapped,  // the last column: text that goes on in lines below where the table is too wide
  };

  std::string name;
  std::string unit = {};
  Kind kind = kNumber;
};
inline Column Number(std::string name, std::string unit = "") { return {name, unit}; }
inline Column Words(std::string name) { return {name, "", Column::kText}; }
inline Column LongWords(std::string name) { return {name, "", Column::kLong}; }
inline Column WrappedWords(std::string name) { return {name, "", Column::kWrapped}; }

// Aligned columns, with a row for their units.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Adds a cell to each column, empty where `cells` has too few. `note` is printed in a line below
  // the row, cut to the width of a line. Control characters of both are escaped.
  void AddRow(std::vector<std::string> cells, std::string note = "");
  bool empty() const { return rows_.empty(); }
  // Returns a line for the names, one for the units if there are any, and one for each row, without
  // trailing blanks.
  std::string ToString() const;

 private:
  // Narrows the long and wrapped columns until the line fits or none can be narrowed further.
  void Shorten(std::vector<size_t>* widths) const;

  struct Row {
    std::vector<std::string> cells;
    std::string note;
  };
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
// In lines as wide as those of tables.
std::string Wrap(absl::string_view text);

}  // namespace agmm
