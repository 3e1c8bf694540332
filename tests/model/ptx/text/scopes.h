// The names of a kernel's body. A block in braces has names of its own, which hide those outside.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/model/ptx/program/program.h"
#include "tests/model/ptx/text/variables.h"

namespace ptx {

// The meaning of a name.
struct Named {
  enum Kind : uint8_t { kNothing, kRegister, kPredicate, kVariable, kLabel };
  Kind kind = kNothing;
  Type type = Type::kNone;  // of a register
  uint32_t index = 0;       // of the register or predicate, or of the instruction after the label
  const Variable* variable = nullptr;
};

class Scopes {
 public:
  void Open();
  // Returns false if the current scope is the outermost one.
  bool Close();
  int current() const { return current_; }

  // Adds a name to the current scope. Returns false if the scope has it already.
  bool Add(std::string_view name, const Named& named);
  // Adds `count` registers, as .reg .b32 %r<5> does. `first` is the meaning of %r0; the indices
  // follow each other.
  bool AddRange(std::string_view base, uint32_t count, const Named& first);
  // Returns the meaning of a name in the current scope; kNothing if it is unknown.
  Named Find(std::string_view name) const;
  // Returns the label that a name means in this scope; kNothing if there is none.
  Named FindLabel(std::string_view name, int scope) const;

 private:
  struct Range {
    std::string_view base;
    uint32_t count;
    Named first;
  };
  struct Scope {
    int parent;
    std::unordered_map<std::string_view, Named> names;
    std::vector<Range> ranges;
  };
  static Named FindInRanges(const Scope& scope, std::string_view name);

  std::vector<Scope> scopes_ = std::vector<Scope>(1, Scope{-1, {}, {}});
  int current_ = 0;
};

}  // namespace ptx
