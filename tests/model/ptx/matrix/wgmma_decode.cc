// The decoder of wgmma.
#include <charconv>

#include "tests/model/ptx/matrix/fragments.h"
#include "tests/model/ptx/matrix/wgmma_form.h"
#include "tests/model/ptx/program/decode.h"

namespace ptx {
namespace {

bool TakeSyncAligned(Modifiers& modifiers) {
  return modifiers.Take("sync") && modifiers.Take("aligned");
}

// Takes .m64nNkK; fills `count` with N, and returns K, or 0.
int TakeShape(Instruction& instruction, Modifiers& modifiers) {
  for (const std::string_view part : modifiers.left()) {
    if (!part.starts_with("m64n")) continue;
    const char* const end = part.data() + part.size();
    int depth = 0;
    const auto columns = std::from_chars(part.data() + 4, end, instruction.count);
    if (columns.ec != std::errc() || columns.ptr == end || *columns.ptr != 'k') return 0;
    const auto last = std::from_chars(columns.ptr + 1, end, depth);
    if (last.ec != std::errc() || last.ptr != end) return 0;
    modifiers.Take(std::string(part));
    return depth;
  }
  return 0;
}

// Returns true if the three types go together.
bool TypesAgree(Type d, Type a, Type b) {
  const auto is_fp8 = [](Type type) { return type == Type::kE4M3 || type == Type::kE5M2; };
  if (d != Type::kF32 && d != Type::kF16) return false;
  if (is_fp8(a)) return is_fp8(b);
  if (a != b) return false;
  return a == Type::kF16 || (d == Type::kF32 && (a == Type::kBF16 || a == Type::kTF32));
}

// Reads an immediate operand. Returns false if it is not one of two values.
bool TakeImmediate(const Operand& operand, int64_t no, int64_t yes, bool& value) {
  value = operand.bits == yes;
  return operand.kind == Operand::kConstant && (operand.bits == no || value);
}

// The immediate operands after scale-d. Returns false if they do not fit the form.
bool ReadImmediates(Instruction& instruction) {
  const bool registers_a = instruction.flags & kRegistersA;
  // Only these can have their rows inside.
  const bool may_transpose = Bytes(instruction.from) == 2;
  const size_t count = may_transpose ? (registers_a ? 7 : 8) : 6;
  const std::vector<Operand>& operands = instruction.operands;
  if (operands.size() != count) return false;
  bool negative_a, negative_b, transposed_a = false, transposed_b = false;
  if (!TakeImmediate(operands[4], 1, -1, negative_a)) return false;
  if (!TakeImmediate(operands[5], 1, -1, negative_b)) return false;
  if (may_transpose && !registers_a && !TakeImmediate(operands[6], 0, 1, transposed_a)) {
    return false;
  }
  if (may_transpose && !TakeImmediate(operands[count - 1], 0, 1, transposed_b)) return false;
  if (negative_a != negative_b) instruction.flags |= kNegated;
  if (transposed_a) instruction.flags |= kTransposedA;
  if (transposed_b) instruction.flags |= kTransposedB;
  return true;
}

bool IsDescriptor(const Operand& operand) {
  return operand.kind == Operand::kConstant ||
         (operand.kind == Operand::kRegister && Bytes(operand.type) == 8);
}

Execute DecodeMma(Instruction& instruction, Modifiers& modifiers) {
  const int depth = TakeShape(instruction, modifiers);
  instruction.type = modifiers.TakeType();
  instruction.from = modifiers.TakeType();
  const Type b = modifiers.TakeType();
  instruction.variant = static_cast<int>(b);
  if (!TypesAgree(instruction.type, instruction.from, b)) return nullptr;
  const int columns = instruction.count;
  if (depth != DepthOf(instruction.from)) return nullptr;
  if (columns < 8 || columns > kMaxColumns || columns % 8) return nullptr;
  const std::vector<Operand>& operands = instruction.operands;
  if (operands.size() < 6) return nullptr;
  const int accumulators = columns / (instruction.type == Type::kF32 ? 2 : 4);
  if (operands[0].kind != Operand::kVector || !HasRegisters(operands[0], accumulators)) {
    return nullptr;
  }
  if (operands[1].kind == Operand::kVector) {
    if (!HasRegisters(operands[1], 4)) return nullptr;
    instruction.flags |= kRegistersA;
  } else if (!IsDescriptor(operands[1])) {
    return nullptr;
  }
  if (!IsDescriptor(operands[2])) return nullptr;
  const bool immediate = operands[3].kind == Operand::kConstant && (operands[3].bits | 1) == 1;
  if (operands[3].kind != Operand::kPredicate && !immediate) return nullptr;
  if (!ReadImmediates(instruction)) return nullptr;
  instruction.registers_async = true;
  return RunWgmmaMma;
}

Execute DecodeWgmma(Instruction& instruction, Modifiers& modifiers) {
  const int which = modifiers.TakeOneOf({"mma_async", "fence", "commit_group", "wait_group"});
  if (which < 0 || !TakeSyncAligned(modifiers)) return nullptr;
  instruction.converges = true;
  if (which == 0) return DecodeMma(instruction, modifiers);
  const std::vector<Operand>& operands = instruction.operands;
  if (which == 3) {
    const bool valid =
        operands.size() == 1 && operands[0].kind == Operand::kConstant && operands[0].bits >= 0;
    return valid ? RunWgmmaWait : nullptr;
  }
  if (!operands.empty()) return nullptr;
  return which == 1 ? RunWgmmaFence : RunWgmmaCommit;
}

}  // namespace

const DecoderTable& WgmmaDecoders() {
  static const DecoderTable table = {{"wgmma", DecodeWgmma}};
  return table;
}

}  // namespace ptx
