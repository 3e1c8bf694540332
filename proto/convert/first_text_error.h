// The first error of a text in protobuf's format, which is the one to fix.
#pragma once

#include <google/protobuf/io/tokenizer.h>

#include <string>

#include "absl/strings/str_format.h"

namespace agmm {

class FirstTextError : public google::protobuf::io::ErrorCollector {
 public:
  // `file`: the name of the text in errors.
  explicit FirstTextError(const std::string& file) : file_(file) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& what) override {
    if (text_.empty()) text_ = absl::StrFormat("%s:%d:%d: %s", file_, line + 1, column + 1, what);
  }
  // "file:line:column: ..."; empty without an error.
  const std::string& text() const { return text_; }

 private:
  const std::string file_;
  std::string text_;
};

}  // namespace agmm
