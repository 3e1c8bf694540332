#include "tests/model/ptx/text/variables.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "tests/model/ptx/state/state.h"

namespace ptx {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 32;

std::optional<Space> SpaceNamed(std::string_view name) {
  if (name == "global") return Space::kGlobal;
  if (name == "const") return Space::kConst;
  if (name == "shared") return Space::kShared;
  if (name == "local") return Space::kLocal;
  return std::nullopt;
}

// The part of a declaration before the names.
struct Head {
  std::optional<Space> space;
  bool external = false;
  uint64_t alignment = 0;  // 0: not given
  int vector = 1;
  Type type = Type::kNone;
  uint64_t element_bytes() const { return static_cast<uint64_t>(Bytes(type)) * vector; }
};

Head ParseHead(Scanner& scanner) {
  Head head;
  while (scanner.Peek() == '.') {
    const std::string_view word = scanner.TakeDirective();
    if (word == "visible" || word == "weak") continue;  // matter to a linker only
    if (word == "extern") {
      head.external = true;
    } else if (const auto space = SpaceNamed(word)) {
      head.space = space;
    } else if (word == "align") {
      head.alignment = ExpectAlignment(scanner);
    } else if (word == "v2" || word == "v4") {
      head.vector = word[1] - '0';
    } else if (Bytes(TypeNamed(word)) > 0) {
      head.type = TypeNamed(word);
    } else {
      scanner.Fail("the model does not know ." + std::string(word) + " in a declaration");
    }
  }
  if (!head.space) scanner.Fail("a variable has no state space");
  if (head.type == Type::kNone) scanner.Fail("a variable has no type");
  // The default is the size of an element.
  if (head.alignment == 0) head.alignment = head.element_bytes();
  if (head.space == Space::kShared && head.alignment > kSharedBase) {
    scanner.Fail("the model aligns shared memory to at most " + std::to_string(kSharedBase));
  }
  return head;
}

// Appends the value as one of this type.
void Append(Scanner& scanner, Type type, std::vector<std::byte>& bytes) {
  if (!scanner.AtNumber()) {
    const std::string_view name = scanner.TakeName();
    if (name.empty()) scanner.Fail("an initialiser has something else than numbers");
    scanner.Fail("an initialiser holds the address of a symbol or an expression, " + Quoted(name));
  }
  const Number number = scanner.ExpectNumber();
  const size_t size = Bytes(type), bits = size * 8;
  uint64_t value = number.bits;
  if (type == Type::kF32 && number.type == Type::kF64) {
    value = Bits(static_cast<float>(As<double>(value)));
  } else if (IsFloat(type)) {
    if (number.type != type) scanner.Fail("an initialiser has another type than its variable");
  } else {
    const bool raw =
        number.type == Type::kNone || (Bytes(number.type) == Bytes(type) && !IsSigned(type));
    if (!raw) scanner.Fail("an initialiser has another type than its variable");
    const bool fits = size >= 8 || value >> bits == 0 || -value <= uint64_t{1} << (bits - 1);
    if (!fits) scanner.Fail("a value of an initialiser does not fit its type");
  }
  const size_t at = bytes.size();
  bytes.resize(at + size);  // .b128: the upper half is the sign
  std::memcpy(&bytes[at], &value, std::min<size_t>(size, 8));
  if (size > 8 && number.bits < 0) std::memset(&bytes[at + 8], 0xff, size - 8);
}

// Takes "= 5" or "= {1, 2}", if it is there.
std::vector<std::byte> TakeInitialiser(Scanner& scanner, const Head& head) {
  std::vector<std::byte> bytes;
  if (!scanner.Take('=')) return bytes;
  const bool has_storage = head.space == Space::kGlobal || head.space == Space::kConst;
  if (!has_storage || head.external) {
    scanner.Fail("only variables in global and const memory can have an initialiser");
  }
  if (!scanner.Take('{')) {
    Append(scanner, head.type, bytes);
    return bytes;
  }
  if (scanner.Take('}')) return bytes;
  do {
    if (scanner.Peek() == '{') scanner.Fail("the model does not know nested initialisers");
    Append(scanner, head.type, bytes);
  } while (scanner.Take(','));
  scanner.Expect('}');
  return bytes;
}

// Adds storage for the variable to the module, and sets its address.
void AddStorage(Module& module, Variable& variable, const std::vector<std::byte>& values) {
  const uint64_t alignment = std::max<uint64_t>(variable.alignment, 128);
  Symbol& symbol = variable.symbol;
  Module::Variable& added = module.variables.emplace_back();
  added.name = symbol.name;
  added.bytes = symbol.bytes;
  added.storage = std::make_unique<std::byte[]>(symbol.bytes + alignment);  // zeros
  const auto begin = reinterpret_cast<uint64_t>(added.storage.get());
  added.data = added.storage.get() + (AlignUp(begin, alignment) - begin);
  std::copy(values.begin(), values.end(), added.data);
  symbol.address = reinterpret_cast<uint64_t>(added.data);
}

Variable ParseVariable(Scanner& scanner, Module& module, const Head& head) {
  Variable variable{.alignment = head.alignment, .external = head.external};
  Symbol& symbol = variable.symbol;
  variable.name = scanner.ExpectName();
  symbol.name = variable.name;
  symbol.space = *head.space;
  const uint64_t elements = TakeDimensions(scanner);
  const std::vector<std::byte> values = TakeInitialiser(scanner, head);
  symbol.bytes = elements > 0 ? elements * head.element_bytes() : values.size();
  if (symbol.bytes > kMaxBytes) scanner.Fail("a variable is larger than the model's 4 GiB");
  if (values.size() > symbol.bytes) scanner.Fail("an initialiser is larger than its variable");
  if (head.external) {
    symbol.dynamic = symbol.space == Space::kShared && elements == 0;
  } else if (symbol.bytes == 0) {
    scanner.Fail("a variable has no size");
  } else if (symbol.space == Space::kGlobal || symbol.space == Space::kConst) {
    AddStorage(module, variable, values);
  }
  return variable;
}

}  // namespace

uint64_t ExpectAlignment(Scanner& scanner) {
  const uint32_t alignment = scanner.ExpectCount();
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    scanner.Fail("an alignment is not a power of two");
  }
  return alignment;
}

uint64_t TakeDimensions(Scanner& scanner) {
  uint64_t elements = 1;
  for (bool first = true; scanner.Take('['); first = false) {
    if (scanner.Take(']')) {
      if (!first || scanner.Peek() == '[') scanner.Fail("an array has no size");
      return 0;
    }
    const uint64_t size = scanner.ExpectCount();
    scanner.Expect(']');
    if (size == 0 || elements * size > kMaxBytes) {
      scanner.Fail("an array does not have 1 to 2^32 elements");
    }
    elements *= size;
  }
  return elements;
}

bool BeginsVariable(std::string_view directive) {
  return SpaceNamed(directive) || directive == "visible" || directive == "weak" ||
         directive == "extern" || directive == "common" || directive == "tex" ||
         directive == "param";
}

std::vector<Variable> ParseVariables(Scanner& scanner, Module& module) {
  const Head head = ParseHead(scanner);
  std::vector<Variable> variables;
  do {
    variables.push_back(ParseVariable(scanner, module, head));
  } while (scanner.Take(','));
  scanner.Expect(';');
  return variables;
}

}  // namespace ptx
