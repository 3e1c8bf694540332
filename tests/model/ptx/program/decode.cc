#include "tests/model/ptx/program/decode.h"

#include <algorithm>

namespace ptx {

Modifiers::Modifiers(const Instruction& instruction) {
  left_.assign(instruction.opcode.begin() + 1, instruction.opcode.end());
}

bool Modifiers::Take(std::string_view part) {
  const auto found = std::find(left_.begin(), left_.end(), part);
  if (found == left_.end()) return false;
  left_.erase(found);
  return true;
}

int Modifiers::TakeOneOf(std::initializer_list<std::string_view> parts) {
  int index = 0;
  for (const std::string_view part : parts) {
    if (Take(part)) return index;
    ++index;
  }
  return -1;
}

Type Modifiers::TakeType() {
  for (auto part = left_.begin(); part != left_.end(); ++part) {
    const Type type = TypeNamed(*part);
    if (type == Type::kNone) continue;
    left_.erase(part);
    return type;
  }
  return Type::kNone;
}

Space Modifiers::TakeSpace() {
  if (Take("global")) return Space::kGlobal;
  if (Take("shared") || Take("shared::cta") || Take("shared::cluster")) return Space::kShared;
  if (Take("param") || Take("param::entry")) return Space::kParam;
  if (Take("const")) return Space::kConst;
  if (Take("local")) return Space::kLocal;
  return Space::kGeneric;
}

Scope Modifiers::TakeScope() {
  if (Take("cta")) return Scope::kCta;
  if (Take("cluster")) return Scope::kCluster;
  if (Take("gpu")) return Scope::kGpu;
  if (Take("sys")) return Scope::kSystem;
  return Scope::kNone;
}

int Modifiers::TakeVector() {
  if (Take("v2")) return 2;
  if (Take("v4")) return 4;
  if (Take("v8")) return 8;
  return 1;
}

void Decode(Instruction& instruction) {
  using Tables = const DecoderTable& (*)();
  static constexpr Tables kTables[] = {ArithmeticDecoders, ConversionDecoders, ControlDecoders,
                                       AccessDecoders,     MatrixDecoders,     BarrierDecoders,
                                       MbarrierDecoders,   BulkDecoders,       WgmmaDecoders};
  std::string left;
  for (const Tables table : kTables) {
    const auto decoder = table().find(instruction.opcode[0]);
    if (decoder == table().end()) continue;
    // A family that does not know the form leaves it to the next one: cp is in two of them.
    Instruction decoded = instruction;
    Modifiers modifiers(instruction);
    const Execute execute = decoder->second(decoded, modifiers);
    if (execute == nullptr) continue;
    if (!modifiers.all_taken()) {
      left = " (." + std::string(modifiers.left().front()) + ")";
      continue;
    }
    instruction = std::move(decoded);
    instruction.execute = execute;
    return;
  }
  throw Stop("line " + std::to_string(instruction.line) + ": unknown instruction" + left + " `" +
             instruction.text.substr(0, 120) + "`");
}

}  // namespace ptx
