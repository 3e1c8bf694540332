// The bulk family: which file an instruction belongs to.
#include "tests/model/ptx/bulk/bulk.h"

namespace ptx {
namespace {

// cp.async.bulk and cp.reduce.async.bulk. cp.async of less than that is in copy_async.cc.
Execute DecodeCopy(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("async") || !modifiers.Take("bulk")) return nullptr;
  const bool reduces = modifiers.Take("reduce");
  if (!reduces && modifiers.Take("commit_group")) return DecodeCommitGroup(instruction);
  if (!reduces && modifiers.Take("wait_group")) return DecodeWaitGroup(instruction, modifiers);
  const bool prefetches = !reduces && modifiers.Take("prefetch");
  if (modifiers.Take("tensor")) {
    return prefetches ? DecodeTensorPrefetch(instruction, modifiers)
                      : DecodeTensorCopy(instruction, modifiers, reduces);
  }
  return prefetches ? DecodeBulkPrefetch(instruction, modifiers)
                    : DecodeBulkCopy(instruction, modifiers, reduces);
}

// Hints may name any address: they bring no fault.
Outcome Hint(Warp&, const Instruction&, uint32_t) { return Outcome::kNext; }

Outcome PrefetchTensorMap(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    ReadTensorMap(warp, instruction, instruction.operands[0], lane, 1u << lane);
  });
  return Outcome::kNext;
}

Execute DecodePrefetch(Instruction& instruction, Modifiers& modifiers) {
  if (instruction.operands.size() != 1 || instruction.operands[0].kind != Operand::kAddress) {
    return nullptr;
  }
  if (modifiers.Take("tensormap")) {
    instruction.space = modifiers.TakeSpace();
    const bool known = instruction.space == Space::kGeneric || instruction.space == Space::kParam ||
                       instruction.space == Space::kConst;
    return known ? PrefetchTensorMap : nullptr;
  }
  const Space space = modifiers.TakeSpace();
  const int level = modifiers.TakeOneOf({"L1", "L2", "L2::evict_last", "L2::evict_normal"});
  if (level < 0 || (level >= 2 && space == Space::kLocal)) return nullptr;
  return space == Space::kGeneric || space == Space::kGlobal || space == Space::kLocal ? Hint
                                                                                       : nullptr;
}

Execute DecodeUniformPrefetch(Instruction& instruction, Modifiers& modifiers) {
  return modifiers.Take("L1") && instruction.operands.size() == 1 ? Hint : nullptr;
}

// The 128 bytes of a line of L2 that applypriority and discard name.
std::byte* LineOf(const Warp& warp, const Instruction& instruction, int lane) {
  const uint64_t address = AddressOf(warp, instruction.operands[0], lane);
  if (address % 128) Fail(warp, instruction, "the address is not a multiple of 128");
  return FindGlobal(warp, address, 128, instruction);
}

Outcome ApplyPriority(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) { LineOf(warp, instruction, lane); });
  return Outcome::kNext;
}

// PTX ISA: writes unstable indeterminate values.
Outcome Discard(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    std::byte* const line = LineOf(warp, instruction, lane);
    warp.cta->grid->world->races.TouchGlobal(reinterpret_cast<uint64_t>(line), 128,
                                             AccessOf(warp, instruction, 1u << lane, true),
                                             KnownBy(warp, lane));
    std::memset(line, 0xcd, 128);
  });
  ++warp.cta->grid->world->events;
  return Outcome::kNext;
}

bool IsLine(Instruction& instruction, Modifiers& modifiers) {
  modifiers.Take("global");
  const auto& operands = instruction.operands;
  return operands.size() == 2 && operands[0].kind == Operand::kAddress &&
         operands[1].kind == Operand::kConstant && operands[1].bits == 128;
}

Execute DecodePriority(Instruction& instruction, Modifiers& modifiers) {
  return modifiers.Take("L2::evict_normal") && IsLine(instruction, modifiers) ? ApplyPriority
                                                                              : nullptr;
}

Execute DecodeDiscard(Instruction& instruction, Modifiers& modifiers) {
  return modifiers.Take("L2") && IsLine(instruction, modifiers) ? Discard : nullptr;
}

}  // namespace

const DecoderTable& BulkDecoders() {
  static const auto& table = *new DecoderTable{
      {"cp", DecodeCopy},
      {"tensormap", DecodeTensorMap},
      {"prefetch", DecodePrefetch},
      {"prefetchu", DecodeUniformPrefetch},
      {"applypriority", DecodePriority},
      {"discard", DecodeDiscard},
  };
  return table;
}

}  // namespace ptx
