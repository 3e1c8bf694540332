#include "tests/model/ptx/text/body.h"

#include <algorithm>
#include <utility>

#include "tests/model/ptx/program/decode.h"

namespace ptx {

Body::Body(Scanner& scanner, Module& module, const ModuleVariables& variables, Kernel& kernel)
    : scanner_(scanner), module_(module), module_variables_(variables), kernel_(kernel) {
  for (const Symbol& parameter : kernel.parameters) {
    const Variable& added = variables_.emplace_back(Variable{.symbol = parameter});
    // The deque keeps the name where it is.
    AddName(added.symbol.name, {.kind = Named::kVariable, .variable = &added});
  }
}

void Body::Parse() {
  scanner_.Expect('{');
  while (ParseStatement()) {
  }
  Finish();
}

bool Body::ParseStatement() {
  scanner_.Begin();
  switch (scanner_.Peek()) {
    case '\0': scanner_.Fail("the text ends inside of a body");
    case ';': return scanner_.Take(';');
    case '.': ParseDirective(scanner_.PeekDirective()); return true;
    case '@': ParseGuarded(); return true;
    case '{':
      scanner_.Take('{');
      scopes_.Open();
      return true;
    case '}': scanner_.Take('}'); return scopes_.Close();
    default: break;
  }
  const std::string_view name = scanner_.TakeName();
  if (name.empty()) scanner_.Fail("expected a PTX statement");
  if (scanner_.Take(':')) {
    AddName(name,
            {.kind = Named::kLabel, .index = static_cast<uint32_t>(kernel_.instructions.size())});
    return true;
  }
  ParseInstruction(name, {});
  return true;
}

void Body::ParseDirective(std::string_view directive) {
  if (directive == "reg") {
    ParseRegisters();
  } else if (directive == "loc") {
    ParseLocation();
  } else if (directive == "pragma") {
    // "No impact on PTX semantics", as the ISA says.
    scanner_.TakeDirective();
    do {
      scanner_.ExpectString();
    } while (scanner_.Take(','));
    scanner_.Expect(';');
  } else if (BeginsVariable(directive)) {
    AddVariables();
  } else {
    scanner_.Fail("the model does not know ." + std::string(directive) + " in a body");
  }
}

void Body::ParseRegisters() {
  scanner_.TakeDirective();
  const std::string_view type_name = scanner_.TakeDirective();
  const Type type = TypeNamed(type_name);
  // A lane has 64 bits.
  if (type == Type::kNone || Bytes(type) > 8) {
    scanner_.Fail("the model has no registers of type ." + std::string(type_name));
  }
  const bool predicate = type == Type::kPred;
  uint32_t& next = predicate ? kernel_.predicate_count : kernel_.register_count;
  do {
    const std::string_view name = scanner_.ExpectName();
    const Named named{
        .kind = predicate ? Named::kPredicate : Named::kRegister, .type = type, .index = next};
    uint32_t count = 1;
    if (scanner_.Take('<')) {
      count = scanner_.ExpectCount();
      scanner_.Expect('>');
      if (!scopes_.AddRange(name, count, named)) {
        scanner_.Fail(Quoted(name) + " is declared twice");
      }
    } else {
      AddName(name, named);
    }
    constexpr uint32_t kMost = 1 << 24;
    if (count > kMost - next) scanner_.Fail("the model allows 2^24 registers in a kernel");
    next += count;
  } while (scanner_.Take(','));
  scanner_.Expect(';');
}

void Body::ParseLocation() {
  scanner_.TakeDirective();
  source_file_ = static_cast<int>(scanner_.ExpectCount());
  source_line_ = static_cast<int>(scanner_.ExpectCount());
  scanner_.ExpectCount();  // the column
  // The function that was inlined, and the place of its call.
  while (scanner_.Take(',')) {
    const std::string_view attribute = scanner_.ExpectName();
    if (attribute == "function_name") {
      scanner_.ExpectName();
      TakeAddends();
    } else if (attribute == "inlined_at") {
      for (int i = 0; i < 3; ++i) scanner_.ExpectCount();
    } else {
      scanner_.Fail("the model does not know this attribute of .loc");
    }
  }
}

void Body::AddName(std::string_view name, const Named& named) {
  if (!scopes_.Add(name, named)) scanner_.Fail(Quoted(name) + " is declared twice");
}

void Body::AddVariables() {
  for (Variable& parsed : ParseVariables(scanner_, module_)) {
    Variable& variable = variables_.emplace_back(std::move(parsed));
    if (!variable.external) Place(variable);
    AddName(variable.name, {.kind = Named::kVariable, .variable = &variable});
  }
}

void Body::Place(Variable& variable) {
  Symbol& symbol = variable.symbol;
  if (symbol.space != Space::kShared && symbol.space != Space::kLocal) return;
  uint32_t& bytes =
      symbol.space == Space::kShared ? kernel_.static_shared_bytes : kernel_.local_bytes;
  symbol.address = AlignUp(bytes, variable.alignment);
  constexpr uint64_t kMost = 1 << 24;  // shared addresses have an offset of 24 bits
  if (symbol.address + symbol.bytes > kMost) {
    scanner_.Fail("the model allows 16 MiB of shared or local memory");
  }
  bytes = static_cast<uint32_t>(symbol.address + symbol.bytes);
}

void Body::ParseGuarded() {
  scanner_.Take('@');
  Instruction instruction;
  instruction.guard_negated = scanner_.Take('!');
  const std::string_view guard = scanner_.ExpectName();
  const Named named = scopes_.Find(guard);
  if (named.kind != Named::kPredicate) scanner_.Fail("no predicate is named " + Quoted(guard));
  instruction.guard = static_cast<int>(named.index);
  ParseInstruction(scanner_.ExpectName(), std::move(instruction));
}

void Body::ParseInstruction(std::string_view first, Instruction instruction) {
  if (first == "call" || first == "brx") {
    scanner_.Fail("the model does not have " + std::string(first));
  }
  instruction.line = scanner_.line();
  instruction.source_file = source_file_;
  instruction.source_line = source_line_;
  instruction.opcode.emplace_back(first);
  for (std::string_view part; !(part = scanner_.TakePart()).empty();) {
    instruction.opcode.emplace_back(part);
  }
  if (scanner_.Peek() != ';') {
    do {
      instruction.operands.push_back(ParseOperand());
    } while (scanner_.Take(','));
  }
  instruction.text = scanner_.statement();
  scanner_.Expect(';');
  for (const Operand& operand : instruction.operands) {
    AddRegisters(operand, instruction.registers);
  }
  std::sort(instruction.registers.begin(), instruction.registers.end());
  const auto end = std::unique(instruction.registers.begin(), instruction.registers.end());
  instruction.registers.erase(end, instruction.registers.end());
  kernel_.instructions.push_back(std::move(instruction));
}

void Body::SetTargets(Instruction& instruction) const {
  for (Operand& operand : instruction.operands) {
    if (operand.kind != Operand::kLabel) continue;
    const Reference& reference = references_[operand.index];
    const Named label = scopes_.FindLabel(reference.name, reference.scope);
    if (label.kind == Named::kNothing) {
      scanner_.FailAt(instruction.line, instruction.text,
                      "nothing is named " + Quoted(reference.name));
    }
    operand.index = label.index;
  }
}

void Body::Finish() {
  Instruction& end = kernel_.instructions.emplace_back();
  end.text = "ret";
  end.line = scanner_.line();
  end.source_file = source_file_;
  end.source_line = source_line_;
  end.opcode = {"ret"};
  for (Instruction& instruction : kernel_.instructions) {
    SetTargets(instruction);
    try {
      Decode(instruction);
    } catch (const Stop& stop) {
      throw Stop("kernel " + kernel_.name.substr(0, 120) + ", " + stop.what());
    }
  }
}

}  // namespace ptx
