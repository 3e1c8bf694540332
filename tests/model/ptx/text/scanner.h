// The text of a PTX module, read piece by piece.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tests/model/ptx/program/program.h"

namespace ptx {

// An immediate value.
struct Number {
  Type type = Type::kNone;  // kF32 of 0f3F800000; kF64 of 0d... and of 1.5; else an integer
  int64_t bits = 0;
};

// Takes pieces off the front of a text. Blanks and comments before a piece are skipped. The
// functions throw Stop if the text has something else in this place.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // Begins a statement: errors show its line and its text.
  void Begin();
  int line() const { return begin_line_; }                      // of the statement
  std::string statement() const;                                // its text so far, on one line
  void set_kernel(const std::string& name) { kernel_ = name; }  // for errors; empty: none

  // Returns the next character, or 0 at the end of the text.
  char Peek();
  bool Take(char wanted);
  void Expect(char wanted);

  // Takes a name such as _ZN7cutlass4smemE, %r1 or $L__BB0_1; a name with % may have a suffix, as
  // %tid.x. Returns an empty name if the next character cannot begin one.
  std::string_view TakeName();
  std::string_view ExpectName();
  // Takes a directive or type, without its dot. Returns an empty one if there is no dot.
  std::string_view TakeDirective();
  // Returns the directive that TakeDirective would take.
  std::string_view PeekDirective();
  // Takes a further part of an opcode, as "shared::cta". Returns an empty one if there is no dot.
  std::string_view TakePart();
  // Takes a text in double quotes.
  std::string_view ExpectString();
  // Takes everything up to the next blank.
  std::string_view TakeWord();

  // True if the next character can begin a number.
  bool AtNumber();
  Number ExpectNumber();
  // Takes an integer that is not negative and fits in 32 bits.
  uint32_t ExpectCount();
  // Takes a block in braces.
  void SkipBlock();

  // Throws Stop: kernel, line, message, and the text of the statement.
  [[noreturn]] void Fail(const std::string& message) const;
  [[noreturn]] void FailAt(int line, std::string_view statement, const std::string& message) const;

 private:
  void SkipBlanks();
  template <typename Predicate>
  std::string_view TakeWhile(Predicate predicate);
  Number NumberOf(std::string_view digits) const;
  Number IntegerOf(std::string_view digits) const;

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  size_t begin_ = 0;
  int begin_line_ = 1;
  std::string kernel_;
};

// Quoted for a message, with at most 120 characters.
std::string Quoted(std::string_view text);

}  // namespace ptx
