// Tables and lists of fields for people, and the forms of numbers in them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace agmm {

struct Column {
  enum Kind {
    kNumber,  // aligned right
    kText,    // aligned left
    kLong,    // text that is shortened where the table is wider than 100 columns, down to 8
  };

  std::string name;
  std::string unit = {};  // may be empty
  Kind kind = kNumber;
};

// Aligned columns, with their units in a row of their own.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell a column; missing ones are empty, further ones are dropped.
  void AddRow(std::vector<std::string> cells);
  // Names, units (unless no column has one), rows; a line each, no blanks at the ends.
  std::string ToString() const;

 private:
  // Long columns, until the line fits or none can give any more.
  void Shorten(std::vector<size_t>* widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// One thing: a name and a text a line; texts go on under themselves before column 100.
class Fields {
 public:
  void Add(std::string name, std::string text) {
    fields_.emplace_back(std::move(name), std::move(text));
  }
  std::string ToString() const;

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

// `text` with line ends for blanks, so that lines have at most `width` bytes where words allow it.
std::string Wrap(absl::string_view text, size_t width);
// "1536.0": MiB, for columns of that unit.
std::string Mebibytes(int64_t bytes);
// `text`, or its beginning and ".." where it is longer than `width` bytes.
std::string Elide(absl::string_view text, size_t width);
// "2026-11-21 12:05:39", local.
std::string LocalTime(absl::Time time);

}  // namespace agmm
