// The body of a kernel: its statements, and the operands of its instructions.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/model/ptx/program/program.h"
#include "tests/model/ptx/text/scanner.h"
#include "tests/model/ptx/text/scopes.h"
#include "tests/model/ptx/text/variables.h"

namespace ptx {

class Body {
 public:
  // The kernel has its name and its parameters already.
  Body(Scanner& scanner, Module& module, const ModuleVariables& variables, Kernel& kernel);
  // Takes the body from its '{' to its '}', and decodes its instructions.
  void Parse();

 private:
  // A label that an instruction names.
  struct Reference {
    std::string_view name;
    int scope;
  };

  // Takes a statement. Returns false after the '}' that ends the body.
  bool ParseStatement();
  void ParseDirective(std::string_view directive);
  void ParseRegisters();
  void ParseLocation();
  void AddName(std::string_view name, const Named& named);
  void AddVariables();
  // Gives the variable its place in the kernel's shared or local memory.
  void Place(Variable& variable);
  // `first` is the first part of the opcode.
  void ParseInstruction(std::string_view first, Instruction instruction);
  void ParseGuarded();
  // Sets the targets of branches, and decodes all instructions.
  void Finish();
  void SetTargets(Instruction& instruction) const;

  // Operands: body_operands.cc.
  Operand ParseOperand();
  Operand ParseVector();
  Operand ParseAddress();
  // A number, or what a name stands for.
  Operand ParseValue();
  Operand ValueNamed(std::string_view name);
  // The q of p|q.
  void ParseSecond(Operand& operand);
  // Takes "+4" or "-4", as often as it is there; returns the sum.
  int64_t TakeAddends();
  // A part of a vector or of an address, which cannot be a label.
  Operand ParsePart();
  Operand ConstantOperand(Type type, int64_t bits);
  // `of_module`: the module declares it, not the body.
  uint32_t SymbolIndex(const Variable& variable, bool of_module);

  Scanner& scanner_;
  Module& module_;
  const ModuleVariables& module_variables_;
  Kernel& kernel_;
  Scopes scopes_;
  std::deque<Variable> variables_;                         // of the parameters and of the body
  std::unordered_map<const Variable*, uint32_t> symbols_;  // indices in Kernel::symbols
  std::unordered_map<int64_t, uint32_t> constants_;        // indices in Kernel::constants, by bits
  std::vector<Reference> references_;  // Operand::index of a label, until Finish
  int source_file_ = -1, source_line_ = 0;
};

// Adds the registers that the operand names.
void AddRegisters(const Operand& operand, std::vector<uint32_t>& registers);

}  // namespace ptx
