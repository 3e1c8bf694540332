// mov, cvta, isspacep, and what the parts of cvt share.
#include "tests/model/ptx/arithmetic/conversion.h"

#include "tests/model/ptx/arithmetic/lanes.h"

namespace ptx {
namespace {

uint64_t MaskOf(int bytes) { return bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << bytes * 8) - 1; }

// ---- mov

template <typename T>
struct Identity {
  static T Run(T value) { return value; }
};

Outcome MovePredicate(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  SetPredicate(warp, operands[0].index, PredicateOf(warp, operands[1]), mask);
  return Outcome::kNext;
}

Outcome MoveSpecial(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  const auto special = static_cast<Special>(operands[1].index);
  const uint64_t width = MaskOf(Bytes(instruction.type));
  Lanes& target = Target(warp, operands[0]);
  ForLanes(mask, [&](int lane) { target[lane] = SpecialValue(warp, special, lane) & width; });
  return Outcome::kNext;
}

Outcome MoveSymbol(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  const uint64_t address = SymbolAddress(warp, operands[1]) & MaskOf(Bytes(instruction.type));
  Lanes& target = Target(warp, operands[0]);
  EachLane(mask, [&](int lane) { target[lane] = address; });
  return Outcome::kNext;
}

Outcome Pack(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& parts = instruction.operands[1].parts;
  const int bytes = Bytes(instruction.type) / static_cast<int>(parts.size());
  const uint64_t width = MaskOf(bytes);
  Lanes& target = Target(warp, instruction.operands[0]);
  // Only a vector of one part may name the target itself, because the parts are smaller.
  const Lanes& first = Source(warp, parts[0]);
  EachLane(mask, [&](int lane) { target[lane] = first[lane] & width; });
  for (size_t i = 1; i < parts.size(); ++i) {
    const Lanes& part = Source(warp, parts[i]);
    const int shift = static_cast<int>(i) * bytes * 8;
    EachLane(mask, [&](int lane) { target[lane] |= (part[lane] & width) << shift; });
  }
  return Outcome::kNext;
}

Outcome Unpack(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& parts = instruction.operands[0].parts;
  const int bytes = Bytes(instruction.type) / static_cast<int>(parts.size());
  const uint64_t width = MaskOf(bytes);
  const Lanes& source = Source(warp, instruction.operands[1]);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].kind == Operand::kSink) continue;
    Lanes& part = Target(warp, parts[i]);
    const int shift = static_cast<int>(i) * bytes * 8;
    EachLane(mask, [&](int lane) { part[lane] = source[lane] >> shift & width; });
  }
  return Outcome::kNext;
}

// The bit type with this many bytes, or kNone.
Type BitType(size_t bytes) {
  switch (bytes) {
    case 1: return Type::kB8;
    case 2: return Type::kB16;
    case 4: return Type::kB32;
    case 8: return Type::kB64;
    default: return Type::kNone;
  }
}

bool IsBits(Type type) { return type == Type::kB16 || type == Type::kB32 || type == Type::kB64; }

// Returns true if the parts of a vector make up the type.
bool FitsParts(Type type, const std::vector<Operand>& parts, bool target) {
  const auto bytes = static_cast<size_t>(Bytes(type));
  if (!IsBits(type) || parts.empty() || bytes % parts.size() != 0) return false;
  const Type element = BitType(bytes / parts.size());
  if (element == Type::kNone) return false;
  for (const Operand& part : parts) {
    if (target && part.kind == Operand::kSink) continue;
    if (target && part.kind != Operand::kRegister) return false;
    if (!FitsSourceOf(element, part)) return false;
  }
  return true;
}

bool FitsMov(Type type, const Operand& target) {
  return target.kind == Operand::kRegister && Bytes(target.type) == Bytes(type);
}

Execute DecodeMov(Instruction& instruction, Modifiers& modifiers) {
  const Type type = instruction.type = modifiers.TakeType();
  if (instruction.operands.size() != 2) return nullptr;
  const Operand &target = instruction.operands[0], &source = instruction.operands[1];
  if (type == Type::kPred) {
    return FitsTarget<bool>(target) && FitsSource<bool>(source) ? MovePredicate : nullptr;
  }
  if (target.kind == Operand::kVector) {
    return FitsParts(type, target.parts, true) && FitsSourceOf(type, source) ? Unpack : nullptr;
  }
  if (!FitsMov(type, target)) return nullptr;
  switch (source.kind) {
    case Operand::kVector: return FitsParts(type, source.parts, false) ? Pack : nullptr;
    case Operand::kSpecial: return IsFloat(type) ? nullptr : MoveSpecial;
    case Operand::kSymbol: return !IsFloat(type) && Bytes(type) >= 4 ? MoveSymbol : nullptr;
    default: break;
  }
  if (type == Type::kF32) return Map<&Identity<float>::Run>(instruction);
  if (type == Type::kF64) return Map<&Identity<double>::Run>(instruction);
  if (IsFloat(type)) return nullptr;
  switch (Bytes(type)) {
    case 2: return Map<&Identity<uint16_t>::Run>(instruction);
    case 4: return Map<&Identity<uint32_t>::Run>(instruction);
    case 8: return Map<&Identity<uint64_t>::Run>(instruction);
    default: return nullptr;
  }
}

// ---- cvta, isspacep

// The bits above the addresses of a space in generic addresses. Global and constant addresses are
// generic ones.
uint64_t WindowOf(Space space) {
  switch (space) {
    case Space::kShared: return kSharedWindow;
    case Space::kParam: return kParamWindow;
    case Space::kLocal: return kLocalWindow;
    default: return 0;
  }
}
bool IsInWindow(uint64_t address, uint64_t window) { return address >> 56 == window >> 56; }

Outcome ToGeneric(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Operand& source = instruction.operands[1];
  const uint64_t window = WindowOf(instruction.space);
  Lanes& target = Target(warp, instruction.operands[0]);
  if (source.kind == Operand::kSymbol) {
    const uint64_t address = window | SymbolAddress(warp, source);
    EachLane(mask, [&](int lane) { target[lane] = address; });
  } else {
    const Lanes& addresses = Source(warp, source);
    EachLane(mask, [&](int lane) { target[lane] = window | addresses[lane]; });
  }
  return Outcome::kNext;
}

// The result for an address outside of the space's window is undefined in the ISA. Here it is one
// that no access takes.
Outcome FromGeneric(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const uint64_t window = WindowOf(instruction.space);
  const Lanes& addresses = Source(warp, instruction.operands[1]);
  Lanes& target = Target(warp, instruction.operands[0]);
  EachLane(mask, [&](int lane) {
    const uint64_t address = addresses[lane];
    const bool inside = window == 0 || IsInWindow(address, window);
    target[lane] = inside ? address & ~window : UINT32_MAX;
  });
  return Outcome::kNext;
}

Execute DecodeCvta(Instruction& instruction, Modifiers& modifiers) {
  const bool from_generic = modifiers.Take("to");
  instruction.space = modifiers.TakeSpace();
  instruction.type = modifiers.TakeType();
  const auto& operands = instruction.operands;
  if (instruction.space == Space::kGeneric || instruction.type != Type::kU64) return nullptr;
  if (operands.size() != 2 || !FitsTarget<uint64_t>(operands[0])) return nullptr;
  if (operands[1].kind == Operand::kSymbol) return from_generic ? nullptr : ToGeneric;
  if (!FitsSource<uint64_t>(operands[1])) return nullptr;
  return from_generic ? FromGeneric : ToGeneric;
}

// isspacep.shared::cta: the cluster's window, and the CTA's own part of it.
Outcome IsOwnShared(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Lanes& addresses = Source(warp, instruction.operands[1]);
  const uint32_t rank = warp.cta->rank;
  const uint32_t holds = LanesWhere([&](int lane) {
    const uint64_t address = addresses[lane];
    return IsInWindow(address, kSharedWindow) && static_cast<uint32_t>(address) >> 24 == rank;
  });
  SetPredicate(warp, instruction.operands[0].index, holds, mask);
  return Outcome::kNext;
}

bool IsShared(uint64_t address) { return IsInWindow(address, kSharedWindow); }
bool IsLocal(uint64_t address) { return IsInWindow(address, kLocalWindow); }
bool IsParam(uint64_t address) { return IsInWindow(address, kParamWindow); }
// The window of the parameters is in that of global memory.
bool IsGlobal(uint64_t address) { return !IsShared(address) && !IsLocal(address); }

// Constant memory has no window of its own here, so that isspacep.const is unknown.
Execute DecodeIsspacep(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("shared::cluster")) return Map<&IsShared>(instruction);
  switch (modifiers.TakeSpace()) {
    case Space::kShared: return Map<&IsShared>(instruction) ? IsOwnShared : nullptr;
    case Space::kGlobal: return Map<&IsGlobal>(instruction);
    case Space::kParam: return Map<&IsParam>(instruction);
    case Space::kLocal: return Map<&IsLocal>(instruction);
    default: return nullptr;
  }
}

// ---- cvt

bool IsPacked(Type type) {
  switch (type) {
    case Type::kF16x2:
    case Type::kBF16x2:
    case Type::kE4M3x2:
    case Type::kE5M2x2:
    case Type::kTF32: return true;
    default: return false;
  }
}
bool IsScalarFloat(Type type) {
  return type == Type::kF16 || type == Type::kBF16 || type == Type::kF32 || type == Type::kF64;
}

Execute DecodeCvt(Instruction& instruction, Modifiers& modifiers) {
  CvtModifiers cvt;
  cvt.rounding = modifiers.TakeOneOf({"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna"});
  cvt.ftz = modifiers.Take("ftz");
  cvt.sat = modifiers.Take("sat");
  cvt.satfinite = modifiers.Take("satfinite");
  cvt.relu = modifiers.Take("relu");
  const Type type = instruction.type = modifiers.TakeType();
  const Type from = instruction.from = modifiers.TakeType();
  if (IsPacked(type) || IsPacked(from)) return DecodeCvtPacked(instruction, cvt);
  const auto& operands = instruction.operands;
  if (operands.size() != 2 || from == Type::kNone) return nullptr;
  if (!FitsCvtTarget(operands[0], type) || !FitsCvtSource(operands[1], from)) return nullptr;
  if (IsScalarFloat(type) && IsScalarFloat(from)) return DecodeCvtFloat(instruction, cvt);
  return DecodeCvtInteger(instruction, cvt);
}

}  // namespace

bool FitsCvtTarget(const Operand& operand, Type type) {
  return operand.kind == Operand::kRegister && Bytes(operand.type) >= Bytes(type);
}

bool FitsCvtSource(const Operand& operand, Type type) {
  switch (operand.kind) {
    case Operand::kRegister: return Bytes(operand.type) >= Bytes(type);
    case Operand::kSpecial: return !IsFloat(type);
    case Operand::kConstant: {
      const bool is_float = operand.type == Type::kF32 || operand.type == Type::kF64;
      if (type == Type::kF32) return is_float;
      if (type == Type::kF64) return operand.type == Type::kF64;
      return !IsFloat(type) && !is_float;
    }
    default: return false;
  }
}

const Lanes& CvtSource(const Warp& warp, const Operand& operand, Type type, Lanes& own) {
  if (operand.kind == Operand::kSpecial) {
    for (int lane = 0; lane < 32; ++lane) {
      own[lane] = SpecialValue(warp, static_cast<Special>(operand.index), lane);
    }
    return own;
  }
  const Lanes& source = Source(warp, operand);
  // A decimal literal is of f64.
  if (operand.kind != Operand::kConstant || operand.type != Type::kF64 || type == Type::kF64) {
    return source;
  }
  own.fill(Bits(static_cast<float>(As<double>(source[0]))));
  return own;
}

const DecoderTable& ConversionDecoders() {
  static const DecoderTable decoders = {
      {"mov", DecodeMov},
      {"cvt", DecodeCvt},
      {"cvta", DecodeCvta},
      {"isspacep", DecodeIsspacep},
  };
  return decoders;
}

}  // namespace ptx
