#include "tests/model/ptx/arithmetic/arithmetic.h"

namespace ptx {
namespace {

const DecoderTable& TableFor(Type type) {
  switch (type) {
    case Type::kF32:
    case Type::kF64: return FloatDecoders();
    case Type::kF16:
    case Type::kBF16:
    case Type::kF16x2:
    case Type::kBF16x2: return HalfDecoders();
    default: return IntegerDecoders();
  }
}

Execute DecodeByType(Instruction& instruction, Modifiers& modifiers) {
  const int pair = modifiers.TakeOneOf({"u16x2", "s16x2"});
  if (pair >= 0) {
    instruction.type = pair == 0 ? Type::kU16 : Type::kS16;
  } else {
    instruction.type = modifiers.TakeType();
  }
  const DecoderTable& table = pair >= 0 ? IntegerPairDecoders() : TableFor(instruction.type);
  const auto found = table.find(instruction.opcode[0]);
  return found == table.end() ? nullptr : found->second(instruction, modifiers);
}

}  // namespace

const DecoderTable& ArithmeticDecoders() {
  static const DecoderTable decoders = [] {
    DecoderTable all;
    for (const auto* table : {&IntegerDecoders(), &FloatDecoders(), &HalfDecoders()}) {
      for (const auto& [name, decoder] : *table) all[name] = DecodeByType;
    }
    for (const auto* table : {&CarryDecoders(), &BitDecoders(), &CompareDecoders()}) {
      all.insert(table->begin(), table->end());
    }
    return all;
  }();
  return decoders;
}

}  // namespace ptx
