#include "kernels/schedule/scanner.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace agmm {
namespace {

constexpr size_t kMaxTextLength = 1024;

}  // namespace

absl::Status Scanner::CheckText() const {
  if (text_.size() > kMaxTextLength) {
    return ErrorAt(kMaxTextLength,
                   absl::StrFormat("the text has %d characters; at most %d are read", text_.size(),
                                   kMaxTextLength));
  }
  for (size_t i = 0; i < text_.size(); ++i) {
    if (absl::ascii_isprint(static_cast<unsigned char>(text_[i]))) continue;
    return ErrorAt(i, absl::StrFormat("byte 0x%02x is not a printable ASCII character; write "
                                      "letters, digits, spaces and _ [ ] { } , : = * ->",
                                      static_cast<unsigned char>(text_[i])));
  }
  return absl::OkStatus();
}

absl::Status Scanner::ErrorAt(size_t at, absl::string_view problem) const {
  std::string quoted(text_.substr(0, kMaxTextLength));
  for (char& c : quoted) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return absl::InvalidArgumentError(absl::StrFormat("%s column %d: %s\n%s\n%s^", what_, at + 1,
                                                    problem, quoted, std::string(at, ' ')));
}

absl::Status Scanner::Expected(absl::string_view what) {
  SkipSpaces();
  if (AtEnd()) return ErrorAt(at_, absl::StrFormat("expected %s, found the end", what));
  return ErrorAt(at_, absl::StrFormat("expected %s, found \"%c\"", what, text_[at_]));
}

bool Scanner::AtEnd() {
  SkipSpaces();
  return at_ == text_.size();
}

bool Scanner::Peek(absl::string_view symbol) {
  SkipSpaces();
  return text_.substr(at_, symbol.size()) == symbol;
}

bool Scanner::Consume(absl::string_view symbol) {
  if (!Peek(symbol)) return false;
  at_ += symbol.size();
  return true;
}

absl::Status Scanner::Expect(absl::string_view symbol) {
  if (Consume(symbol)) return absl::OkStatus();
  return Expected(absl::StrFormat("\"%s\"", symbol));
}

absl::Status Scanner::ExpectEnd() {
  if (AtEnd()) return absl::OkStatus();
  return ErrorAt(at_, absl::StrFormat("\"%s\" is left over", text_.substr(at_)));
}

Token Scanner::Word() {
  SkipSpaces();
  const size_t begin = at_;
  while (at_ < text_.size() && absl::ascii_isalnum(text_[at_])) ++at_;
  return {text_.substr(begin, at_ - begin), begin};
}

absl::StatusOr<Token> Scanner::Name(absl::string_view what) {
  SkipSpaces();
  if (at_ == text_.size() || !absl::ascii_isalpha(text_[at_])) return Expected(what);
  return Word();
}

absl::StatusOr<int64_t> Scanner::Number(absl::string_view what, int64_t max) {
  SkipSpaces();
  const size_t begin = at_;
  // Takes signs and points, too, so that an error shows the whole number.
  const auto in_number = [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '+' || c == '.';
  };
  while (at_ < text_.size() && in_number(text_[at_])) ++at_;
  if (at_ == begin) return Expected(what);
  const absl::string_view number = text_.substr(begin, at_ - begin);
  int64_t value = 0;
  if (number.find_first_not_of("0123456789") != number.npos || !absl::SimpleAtoi(number, &value) ||
      value < 1 || value > max) {
    return ErrorAt(begin, absl::StrFormat("%s is %s; it must be a whole number from 1 to %d", what,
                                          number, max));
  }
  return value;
}

void Scanner::SkipSpaces() {
  while (at_ < text_.size() && text_[at_] == ' ') ++at_;
}

}  // namespace agmm
