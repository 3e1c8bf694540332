// Reads the notation token by token, with errors that point at a column.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm {

// A piece of the text and where it begins, counted from 0.
struct Token {
  absl::string_view text;
  size_t at = 0;
};

// Reads tokens of one text; spaces between them mean nothing.
class Scanner {
 public:
  // `what` is the name of the text in errors: "spec", "mesh".
  Scanner(absl::string_view what, absl::string_view text) : what_(what), text_(text) {}

  // Refuses texts that an error could not quote: overlong texts, and bytes other than printable
  // ASCII.
  absl::Status CheckText() const;
  // Returns an error of three lines: the fault with its column (from 1), the text, and a caret
  // under it.
  absl::Status ErrorAt(size_t at, absl::string_view problem) const;
  // Returns an error at the next token: "expected `what`, found ...".
  absl::Status Expected(absl::string_view what);

  bool AtEnd();
  bool Peek(absl::string_view symbol);
  bool Consume(absl::string_view symbol);
  absl::Status Expect(absl::string_view symbol);
  absl::Status ExpectEnd();

  // Reads letters and digits, possibly none.
  Token Word();
  // Reads a word that begins with a letter; `what` describes it in errors.
  absl::StatusOr<Token> Name(absl::string_view what);
  // Reads a whole number in [1, max].
  absl::StatusOr<int64_t> Number(absl::string_view what, int64_t max);

 private:
  void SkipSpaces();

  absl::string_view what_, text_;
  size_t at_ = 0;
};

}  // namespace agmm
