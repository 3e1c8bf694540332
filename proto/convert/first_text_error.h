// The first error of a text in protobuf's format, which is the one to fix.
#pragma once

#include <google/protobuf/io/tokenizer.h>

#include <string>

#include "absl/strings/str_format.h"

namespace agmm {

class FirstTextError : public google::protobuf::io::ErrorCollector {
 public:
  // `file`: the name of the text in errors. `first_line`, `first_column`: the place in the file,
  // from 0, at which the text begins.
  explicit FirstTextError(const std::string& file, int first_line = 0, int first_column = 0)
      : file_(file), first_line_(first_line), first_column_(first_column) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& what) override {
    if (!text_.empty()) return;
    text_ = absl::StrFormat("%s:%d:%d: %s", file_, first_line_ + line + 1,
                            (line == 0 ? first_column_ : 0) + column + 1, what);
  }
  // "file:line:column: ..."; empty without an error.
  const std::string& text() const { return text_; }

 private:
  const std::string file_;
  const int first_line_, first_column_;
  std::string text_;
};

}  // namespace agmm
