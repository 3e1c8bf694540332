// The operands of instructions.
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tests/model/ptx/text/body.h"

namespace ptx {
namespace {

// In the order of Special.
constexpr std::string_view kSpecialNames[] = {
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%cluster_ctaid.x",
    "%cluster_ctaid.y",
    "%cluster_ctaid.z",
    "%cluster_nctaid.x",
    "%cluster_nctaid.y",
    "%cluster_nctaid.z",
    "%clusterid.x",
    "%clusterid.y",
    "%clusterid.z",
    "%nclusterid.x",
    "%nclusterid.y",
    "%nclusterid.z",
    "%is_explicit_cluster",
    "%smid",
    "%nsmid",
    "%globaltimer",
    "%clock",
    "%clock64",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
};
static_assert(std::size(kSpecialNames) == static_cast<size_t>(Special::kLanemaskGt) + 1);

// Returns the special register of this name, or -1.
int SpecialNamed(std::string_view name) {
  static const auto* const specials = [] {
    auto* const by_name = new std::unordered_map<std::string_view, int>;
    for (const std::string_view special : kSpecialNames) {
      by_name->emplace(special, static_cast<int>(by_name->size()));
    }
    return by_name;
  }();
  const auto found = specials->find(name);
  return found == specials->end() ? -1 : found->second;
}

}  // namespace

void AddRegisters(const Operand& operand, std::vector<uint32_t>& registers) {
  if (operand.kind == Operand::kRegister) registers.push_back(operand.index);
  for (const Operand& part : operand.parts) AddRegisters(part, registers);
}

Operand Body::ParseOperand() {
  switch (scanner_.Peek()) {
    case '{': return ParseVector();
    case '[': return ParseAddress();
    case '!': {
      scanner_.Take('!');
      Operand operand = ParseValue();
      if (operand.kind != Operand::kPredicate) scanner_.Fail("only a predicate can follow a '!'");
      operand.negated = true;
      return operand;
    }
    default: break;
  }
  Operand operand = ParseValue();
  if (scanner_.Take('|')) ParseSecond(operand);
  if (operand.kind == Operand::kSymbol) operand.bits = TakeAddends();
  return operand;
}

Operand Body::ParseVector() {
  Operand vector{.kind = Operand::kVector};
  scanner_.Expect('{');
  do {
    vector.parts.push_back(ParsePart());
  } while (scanner_.Take(','));
  scanner_.Expect('}');
  return vector;
}

Operand Body::ParseAddress() {
  Operand address{.kind = Operand::kAddress};
  scanner_.Expect('[');
  address.parts.push_back(ParsePart());
  address.bits = TakeAddends();
  while (scanner_.Take(',')) {
    address.parts.push_back(scanner_.Peek() == '{' ? ParseVector() : ParsePart());
  }
  scanner_.Expect(']');
  return address;
}

Operand Body::ParsePart() {
  Operand part = ParseValue();
  if (part.kind == Operand::kLabel) {
    scanner_.Fail("nothing is named " + Quoted(references_[part.index].name));
  }
  return part;
}

Operand Body::ParseValue() {
  if (scanner_.AtNumber()) {
    const Number number = scanner_.ExpectNumber();
    return ConstantOperand(number.type, number.bits);
  }
  const std::string_view name = scanner_.TakeName();
  if (name.empty()) scanner_.Fail("there is no operand that the model knows");
  return ValueNamed(name);
}

Operand Body::ValueNamed(std::string_view name) {
  if (name == "_") return {.kind = Operand::kSink};
  const Named named = scopes_.Find(name);
  switch (named.kind) {
    case Named::kRegister:
      return {.kind = Operand::kRegister, .type = named.type, .index = named.index};
    case Named::kPredicate:
      return {.kind = Operand::kPredicate, .type = named.type, .index = named.index};
    case Named::kVariable:
      return {.kind = Operand::kSymbol, .index = SymbolIndex(*named.variable, false)};
    case Named::kLabel:
    case Named::kNothing: break;
  }
  if (named.kind == Named::kNothing) {
    const auto variable = module_variables_.find(name);
    if (variable != module_variables_.end()) {
      return {.kind = Operand::kSymbol, .index = SymbolIndex(variable->second, true)};
    }
    const int special = SpecialNamed(name);
    if (special >= 0) {
      return {.kind = Operand::kSpecial, .index = static_cast<uint32_t>(special)};
    }
    if (name == "WARP_SZ") return ConstantOperand(Type::kNone, 32);
    if (name[0] == '%') scanner_.Fail("no register or special register is named " + Quoted(name));
  }
  // Labels may follow later.
  references_.push_back({name, scopes_.current()});
  return {.kind = Operand::kLabel, .index = static_cast<uint32_t>(references_.size() - 1)};
}

void Body::ParseSecond(Operand& operand) {
  const bool fits = operand.kind == Operand::kRegister || operand.kind == Operand::kPredicate ||
                    operand.kind == Operand::kSink;
  if (!fits) scanner_.Fail("only a register or _ can precede a '|'");
  const Operand second = ParseValue();
  if (second.kind == Operand::kSink) return;
  if (second.kind != Operand::kPredicate) scanner_.Fail("only a predicate or _ can follow a '|'");
  operand.second = static_cast<int>(second.index);
}

int64_t Body::TakeAddends() {
  int64_t sum = 0;
  while (scanner_.Peek() == '+' || scanner_.Peek() == '-') {
    const Number number = scanner_.ExpectNumber();
    if (number.type != Type::kNone) scanner_.Fail("an offset is not an integer");
    sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(number.bits));
  }
  return sum;
}

Operand Body::ConstantOperand(Type type, int64_t bits) {
  const auto index = static_cast<uint32_t>(kernel_.constants.size());
  const auto [found, added] = constants_.emplace(bits, index);
  if (added) kernel_.constants.emplace_back().fill(static_cast<uint64_t>(bits));
  return {.kind = Operand::kConstant, .type = type, .index = found->second, .bits = bits};
}

uint32_t Body::SymbolIndex(const Variable& variable, bool of_module) {
  const auto index = static_cast<uint32_t>(kernel_.symbols.size());
  const auto [found, added] = symbols_.emplace(&variable, index);
  if (!added) return found->second;
  if (variable.external && !variable.symbol.dynamic) {
    scanner_.Fail("the module does not define " + Quoted(variable.symbol.name));
  }
  // Shared memory of the module counts for each kernel that names it.
  Variable copy = variable;
  if (of_module && !copy.symbol.dynamic) Place(copy);
  kernel_.symbols.push_back(copy.symbol);
  return index;
}

}  // namespace ptx
