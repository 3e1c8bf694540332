// Tables for people: aligned columns, with their units in a row of their own.
#pragma once

#include <string>
#include <vector>

namespace agmm {

struct Column {
  std::string name;
  std::string unit;   // may be empty
  bool text = false;  // aligned left; numbers are aligned right
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell a column; missing ones are empty, further ones are dropped.
  void AddRow(std::vector<std::string> cells);
  // Names, units (unless no column has one), rows; a line each, no blanks at the ends.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace agmm
