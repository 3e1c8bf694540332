#include "tests/model/ptx/text/scanner.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace ptx {
namespace {

bool IsBlank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsWordCharacter(char c) { return IsLetter(c) || IsDigit(c) || c == '_'; }
bool IsNameCharacter(char c) { return IsWordCharacter(c) || c == '$'; }

// Returns the end of the blanks and comments at `at`.
size_t SkipBlanksAt(std::string_view text, size_t at) {
  while (at < text.size()) {
    if (IsBlank(text[at])) {
      ++at;
    } else if (text.substr(at, 2) == "//") {
      at = std::min(text.find('\n', at), text.size());
    } else if (text.substr(at, 2) == "/*") {
      const size_t end = text.find("*/", at + 2);
      at = end == text.npos ? text.size() : end + 2;
    } else {
      break;
    }
  }
  return at;
}

// Each row of blanks and comments becomes one space.
std::string OnOneLine(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (size_t at = SkipBlanksAt(text, 0); at < text.size();) {
    size_t end = at;
    do {
      ++end;
    } while (end < text.size() && !IsBlank(text[end]) && text[end] != '/');
    line += text.substr(at, end - at);
    at = SkipBlanksAt(text, end);
    if (at > end && at < text.size()) line += ' ';
  }
  return line;
}

std::string Cropped(std::string_view text) {
  constexpr size_t kMost = 120;
  return std::string(text.substr(0, kMost)) + (text.size() > kMost ? "..." : "");
}

}  // namespace

std::string Quoted(std::string_view text) { return "`" + Cropped(text) + "`"; }

void Scanner::SkipBlanks() {
  const size_t end = SkipBlanksAt(text_, at_);
  for (; at_ < end; ++at_) line_ += text_[at_] == '\n';
}

template <typename Predicate>
std::string_view Scanner::TakeWhile(Predicate predicate) {
  const size_t begin = at_;
  while (at_ < text_.size() && predicate(text_[at_])) ++at_;
  return text_.substr(begin, at_ - begin);
}

void Scanner::Begin() {
  SkipBlanks();
  begin_ = at_;
  begin_line_ = line_;
}

std::string Scanner::statement() const { return OnOneLine(text_.substr(begin_, at_ - begin_)); }

char Scanner::Peek() {
  if (at_ < text_.size() && !IsBlank(text_[at_]) && text_[at_] != '/') return text_[at_];
  SkipBlanks();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool Scanner::Take(char wanted) {
  if (Peek() != wanted || wanted == '\0') return false;
  ++at_;
  return true;
}

void Scanner::Expect(char wanted) {
  if (Take(wanted)) return;
  const char found = Peek();
  const std::string there =
      found == '\0' ? "the text ends" : std::string("there is a '") + found + "'";
  Fail(there + " where a '" + wanted + "' should be");
}

std::string_view Scanner::TakeName() {
  const char first = Peek();
  if (!IsLetter(first) && first != '_' && first != '$' && first != '%') return {};
  const size_t begin = at_++;
  TakeWhile(IsNameCharacter);
  if (first == '%' && at_ + 1 < text_.size() && text_[at_] == '.' && IsLetter(text_[at_ + 1])) {
    ++at_;
    TakeWhile(IsNameCharacter);
  }
  return text_.substr(begin, at_ - begin);
}

std::string_view Scanner::ExpectName() {
  const std::string_view name = TakeName();
  if (name.empty()) Fail("a name is missing");
  return name;
}

std::string_view Scanner::TakeDirective() {
  if (!Take('.')) return {};
  const std::string_view name = TakeWhile(IsWordCharacter);
  if (name.empty()) Fail("a name is missing after a dot");
  return name;
}

std::string_view Scanner::PeekDirective() {
  if (Peek() != '.') return {};
  size_t end = at_ + 1;
  while (end < text_.size() && IsWordCharacter(text_[end])) ++end;
  return text_.substr(at_ + 1, end - at_ - 1);
}

std::string_view Scanner::TakePart() {
  if (!Take('.')) return {};
  const std::string_view part = TakeWhile([](char c) { return IsWordCharacter(c) || c == ':'; });
  if (part.empty()) Fail("a name is missing after a dot");
  return part;
}

std::string_view Scanner::ExpectString() {
  Expect('"');
  const std::string_view inside = TakeWhile([](char c) { return c != '"' && c != '\n'; });
  if (at_ == text_.size() || text_[at_] != '"') Fail("a string has no end");
  ++at_;
  return inside;
}

std::string_view Scanner::TakeWord() {
  Peek();
  return TakeWhile([](char c) { return !IsBlank(c); });
}

bool Scanner::AtNumber() {
  const char next = Peek();
  return IsDigit(next) || next == '-' || next == '+';
}

Number Scanner::ExpectNumber() {
  bool negative = false;
  while (Peek() == '-' || Peek() == '+') negative ^= text_[at_++] == '-';
  if (!IsDigit(Peek())) Fail("a number is missing");
  const size_t begin = at_;
  TakeWhile([](char c) { return IsWordCharacter(c) || c == '.'; });
  // The exponent's sign. A hexadecimal number may end with e.
  const bool exponent = (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E') &&
                        text_.substr(begin, at_ - begin - 1).find_first_not_of("0123456789.") ==
                            std::string_view::npos;
  if (exponent && at_ + 1 < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) {
    ++at_;
    TakeWhile(IsDigit);
  }
  Number number = NumberOf(text_.substr(begin, at_ - begin));
  if (!negative) return number;
  switch (number.type) {
    case Type::kF32: number.bits ^= int64_t{1} << 31; break;
    case Type::kF64: number.bits ^= INT64_MIN; break;
    default:
      if (number.bits < 0 && number.bits != INT64_MIN) Fail("a number has more than 64 bits");
      number.bits = static_cast<int64_t>(-static_cast<uint64_t>(number.bits));
  }
  return number;
}

Number Scanner::NumberOf(std::string_view digits) const {
  const std::string_view head = digits.substr(0, 2);
  const bool single = head == "0f" || head == "0F";
  if (single || head == "0d" || head == "0D") {
    uint64_t bits = 0;
    const auto [end, error] =
        std::from_chars(digits.data() + 2, digits.data() + digits.size(), bits, 16);
    if (error != std::errc() || end != digits.end() || digits.size() != (single ? 10 : 18)) {
      Fail(Quoted(digits) + " should have " + (single ? "8" : "16") + " hexadecimal digits");
    }
    return {single ? Type::kF32 : Type::kF64, static_cast<int64_t>(bits)};
  }
  if (head == "0x" || head == "0X" || digits.find_first_of(".eE") == digits.npos) {
    return IntegerOf(digits);
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), value);
  if (error != std::errc() || end != digits.end()) Fail(Quoted(digits) + " is not a number");
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return {Type::kF64, bits};
}

Number Scanner::IntegerOf(std::string_view digits) const {
  std::string_view rest = digits;
  if (rest.back() == 'U') rest.remove_suffix(1);
  int base = 10;
  if (rest.size() > 1 && rest[0] == '0') {
    base = rest[1] == 'x' || rest[1] == 'X' ? 16 : rest[1] == 'b' || rest[1] == 'B' ? 2 : 8;
    rest.remove_prefix(base == 8 ? 1 : 2);
  }
  uint64_t bits = 0;
  const auto [end, error] = std::from_chars(rest.begin(), rest.end(), bits, base);
  if (error != std::errc() || end != rest.end()) {
    Fail(Quoted(digits) + " is not an integer of 64 bits");
  }
  return {Type::kNone, static_cast<int64_t>(bits)};
}

uint32_t Scanner::ExpectCount() {
  const Number number = ExpectNumber();
  if (number.type != Type::kNone || number.bits < 0 || number.bits > UINT32_MAX) {
    Fail("a number should be an integer from 0 to 4294967295");
  }
  return static_cast<uint32_t>(number.bits);
}

void Scanner::SkipBlock() {
  Expect('{');
  for (int depth = 1; depth > 0;) {
    switch (Peek()) {
      case '\0': Fail("a block has no end");
      case '"': ExpectString(); continue;
      case '{': ++depth; break;
      case '}': --depth; break;
      default: break;
    }
    ++at_;
  }
}

void Scanner::Fail(const std::string& message) const {
  // Text behind the error is shown as well, up to the end of the statement.
  constexpr size_t kMost = 2000;
  const size_t from = std::max(begin_, at_ > 0 ? at_ - 1 : 0);
  const size_t end = std::min(text_.find(';', from), text_.size());
  FailAt(begin_line_, OnOneLine(text_.substr(begin_, std::min(end - begin_, kMost))), message);
}

void Scanner::FailAt(int line, std::string_view statement, const std::string& message) const {
  const std::string kernel = kernel_.empty() ? "" : "kernel " + Cropped(kernel_) + ", ";
  throw Stop(kernel + "line " + std::to_string(line) + ": " + message + ": " + Quoted(statement));
}

}  // namespace ptx
