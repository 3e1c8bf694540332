// tensormap.replace and tensormap.cp_fenceproxy, and how TMA finds a tensor map.
//
// TMA reads maps through a proxy of its own. A change of a map in global memory is an event that a
// thread knows after fence.proxy.tensormap::generic.acquire of its address (AcquireAt), or from a
// thread that has run one.
#include <cstdio>
#include <tuple>

#include "tests/model/ptx/bulk/bulk.h"

namespace ptx {
namespace {

std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

constexpr uint32_t kMapBytes = sizeof(TensorMap);

struct Found {
  std::byte* at = nullptr;
  bool global = false;
};

// A map in parameters, in constant or in global memory.
Found FindMap(const Warp& warp, const Instruction& instruction, const Operand& address, int lane) {
  uint64_t at = AddressOf(warp, address, lane);
  const Operand& base = address.parts[0];
  const bool parameter =
      instruction.space == Space::kParam || at >> 56 == kParamWindow >> 56 ||
      (base.kind == Operand::kSymbol && KernelOf(warp).symbols[base.index].space == Space::kParam);
  if (at % 64) {
    Fail(warp, instruction, "the tensor map's address " + Hex(at) + " is not a multiple of 64");
  }
  if (!parameter) {
    const bool shared_or_local = at >> 56 == kSharedWindow >> 56 || at >> 56 == kLocalWindow >> 56;
    if (shared_or_local) {
      Fail(warp, instruction,
           "there is no tensor map at " + Hex(at) + ": TMA cannot read it there");
    }
    return {FindGlobal(warp, at, kMapBytes, instruction), instruction.space != Space::kConst};
  }
  at &= (uint64_t{1} << 56) - 1;
  auto& parameters = warp.cta->grid->parameters;
  if (at + kMapBytes > parameters.size()) {
    Fail(warp, instruction,
         "there is no tensor map at offset " + Hex(at) + " of the parameters: they have " +
             std::to_string(parameters.size()) + " bytes");
  }
  return {parameters.data() + at, false};
}

void CheckFence(Warp& warp, const Instruction& instruction, uint32_t lanes, uint64_t at,
                const Knowledge& known) {
  World& world = *warp.cta->grid->world;
  const auto change = world.map_changes.find(at);
  if (change == world.map_changes.end()) return;
  if (known.order.Knows(change->second.agent, change->second.clock)) return;
  world.races.Add("reads a tensor map after a change, without a proxy fence",
                  AccessOf(warp, instruction, lanes, false), &change->second,
                  "fence.proxy.tensormap::generic.acquire would order them");
}

// Notes the change of a map at an address (of the host): acquires of the address learn of it.
void NoteChange(Warp& warp, const Instruction& instruction, uint32_t lanes, const std::byte* map,
                Scope scope) {
  World& world = *warp.cta->grid->world;
  if (!world.races.enabled) return;
  const auto at = reinterpret_cast<uint64_t>(map);
  Knowledge known = Publish(warp, lanes);
  Access change = AccessOf(warp, instruction, lanes, true);
  std::tie(change.agent, change.clock) = world.AgentFor(warp, known);
  known.order.Learn(change.agent, change.clock);
  world.map_changes[at] = change;
  auto& releases = world.released[at];
  ++world.releases;
  for (World::Release& release : releases) {
    if (release.agent != warp.agent || release.scope != scope) continue;
    release.known.Join(known);
    return;
  }
  const Cta& cta = *warp.cta;
  releases.push_back(
      {scope, cta.grid->launch.gpu, cta.cluster->number, cta.number, warp.agent, std::move(known)});
}

// ---- tensormap.replace

// `variant` is the field, `count` the ordinal; the new value is the last operand.
enum Field : int {
  kGlobalAddress,
  kRank,
  kBoxDim,
  kGlobalDim,
  kGlobalStride,
  kElementStride,
  kElemtype,
  kInterleave,
  kSwizzleMode,
  kFillMode,
};
bool HasOrdinal(int field) { return field >= kBoxDim && field <= kElementStride; }
bool IsImmediate(int field) { return field >= kElemtype; }

// PTX numbers the types in another order than CUDA.
constexpr uint8_t kTypeOf[] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12};

// The greatest value that ptxas accepts for sm_90a.
uint64_t GreatestOf(int field) {
  switch (field) {
    case kElemtype: return 12;
    case kInterleave: return 2;
    case kSwizzleMode: return 3;
    default: return 1;
  }
}

// Sets a field. Dimensions are stored less 1, in the bits that the hardware has for them.
void SetField(TensorMap& map, const Instruction& instruction, uint64_t value) {
  const int ordinal = instruction.count;
  switch (instruction.variant) {
    case kGlobalAddress: map.address = value; break;
    case kRank: map.rank = static_cast<uint8_t>((value & 7) + 1); break;
    case kBoxDim: map.box[ordinal] = ((value - 1) & 0xff) + 1; break;
    case kGlobalDim: map.dims[ordinal] = ((value - 1) & 0xffffffff) + 1; break;
    case kGlobalStride: map.strides[ordinal] = value; break;
    case kElementStride:
      map.element_strides[ordinal] = static_cast<uint8_t>(((value - 1) & 7) + 1);
      break;
    case kElemtype:
      map.type = kTypeOf[value];
      map.element_bytes = static_cast<uint8_t>(TensorElementBytes(map.type));
      break;
    case kInterleave: map.interleave = static_cast<uint8_t>(value); break;
    case kSwizzleMode: map.swizzle = static_cast<uint8_t>(value); break;
    default: map.fill = static_cast<uint8_t>(value); break;
  }
}

// Zeros are a map, too: of rank 1, u8, all dimensions 1.
TensorMap LoadMap(const Warp& warp, const Instruction& instruction, const std::byte* from) {
  TensorMap map;
  std::memcpy(&map, from, kMapBytes);
  if (map.magic == TensorMap::kMagic) return map;
  for (uint32_t i = 0; i < kMapBytes; ++i) {
    if (from[i] == std::byte{0}) continue;
    Fail(warp, instruction,
         "there is no tensor map at the address: a copy of one or zeros are needed");
  }
  map = TensorMap{.rank = 1, .element_bytes = 1};
  for (int i = 0; i < 5; ++i) map.dims[i] = map.box[i] = map.element_strides[i] = 1;
  return map;
}

// The 128 bytes of a map that the lanes change. A part is new, so that the instruction reads them,
// too.
std::byte* BytesToChange(Warp& warp, const Instruction& instruction, uint64_t address,
                         uint32_t lanes, bool shared) {
  if (address % 64) {
    Fail(warp, instruction,
         "the tensor map's address " + Hex(address) + " is not a multiple of 64");
  }
  Races& races = warp.cta->grid->world->races;
  const Knowledge known = KnownByAny(warp, lanes);
  const Access read = AccessOf(warp, instruction, lanes, false),
               write = AccessOf(warp, instruction, lanes, true);
  if (!shared) {
    std::byte* const at = FindGlobal(warp, address, kMapBytes, instruction);
    for (const Access& access : {read, write}) {
      races.TouchGlobal(reinterpret_cast<uint64_t>(at), kMapBytes, access, known);
    }
    return at;
  }
  const SharedPlace place = FindShared(warp, address, kMapBytes, instruction);
  if (place.cta != warp.cta) {
    Fail(warp, instruction, "the tensor map lies in the shared memory of another CTA");
  }
  for (const Access& access : {read, write}) {
    races.TouchShared(place.cta->cells, place.offset, kMapBytes, access, known);
  }
  return place.data();
}

Outcome Replace(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto values = [&](int lane) -> OperandValues {
    return {AddressOf(warp, instruction.operands[0], lane),
            Source(warp, instruction.operands.back())[lane]};
  };
  for (const auto& [operands, lanes] : DistinctOperands(mask, values)) {
    const uint64_t address = operands[0], value = operands[1];
    const bool shared =
        instruction.space == Space::kShared ||
        (instruction.space == Space::kGeneric && address >> 56 == kSharedWindow >> 56);
    std::byte* const bytes = BytesToChange(warp, instruction, address, lanes, shared);
    TensorMap map = LoadMap(warp, instruction, bytes);
    SetField(map, instruction, value);
    std::memcpy(bytes, &map, kMapBytes);
    // The release half, fence.proxy.tensormap::generic.release, is taken for granted.
    if (!shared) NoteChange(warp, instruction, lanes, bytes, Scope::kSystem);
  }
  ++warp.cta->grid->world->events;
  return Outcome::kNext;
}

Execute DecodeReplace(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("tile")) return nullptr;
  const int field = modifiers.TakeOneOf({"global_address", "rank", "box_dim", "global_dim",
                                         "global_stride", "element_stride", "elemtype",
                                         "interleave_layout", "swizzle_mode", "fill_mode"});
  const bool wide = field == kGlobalAddress || field == kGlobalStride;
  if (field < 0 || !modifiers.Take("b1024") || !modifiers.Take(wide ? "b64" : "b32")) {
    return nullptr;
  }
  if (modifiers.Take("global")) {
    instruction.space = Space::kGlobal;
  } else if (modifiers.Take("shared::cta")) {
    instruction.space = Space::kShared;
  }
  instruction.variant = field;
  const auto& operands = instruction.operands;
  if (operands.size() != (HasOrdinal(field) ? 3 : 2) || operands[0].kind != Operand::kAddress) {
    return nullptr;
  }
  const Operand& value = operands.back();
  if (value.kind != Operand::kRegister && value.kind != Operand::kConstant) return nullptr;
  if (IsImmediate(field)) {
    const bool known =
        value.kind == Operand::kConstant && static_cast<uint64_t>(value.bits) <= GreatestOf(field);
    if (!known) return nullptr;
  }
  if (HasOrdinal(field)) {
    const bool known = operands[1].kind == Operand::kConstant && operands[1].bits >= 0 &&
                       operands[1].bits <= (field == kGlobalStride ? 3 : 4);
    if (!known) return nullptr;
    instruction.count = static_cast<int>(operands[1].bits);
  }
  return Replace;
}

// ---- tensormap.cp_fenceproxy

// The lanes copy 4 bytes each, as in SASS.
Outcome CopyAndFence(Warp& warp, const Instruction& instruction, uint32_t mask) {
  if (mask != kAllLanes) Fail(warp, instruction, "not all 32 lanes of the warp run it");
  World& world = *warp.cta->grid->world;
  const uint64_t to = AddressOf(warp, instruction.operands[0], 0),
                 from = AddressOf(warp, instruction.operands[1], 0);
  ForLanes(mask, [&](int lane) {
    if (AddressOf(warp, instruction.operands[0], lane) != to ||
        AddressOf(warp, instruction.operands[1], lane) != from) {
      Fail(warp, instruction, "the lanes of the warp have different addresses");
    }
  });
  if (to % 64 || from % 64) {
    Fail(warp, instruction, "an address of a tensor map is not a multiple of 64");
  }
  const SharedPlace source = FindShared(warp, from, kMapBytes, instruction);
  if (source.cta != warp.cta) {
    Fail(warp, instruction, "the source lies in the shared memory of another CTA");
  }
  std::byte* const target = FindGlobal(warp, to, kMapBytes, instruction);
  ForLanes(mask, [&](int lane) {
    const Knowledge& known = KnownBy(warp, lane);
    world.races.TouchShared(source.cta->cells, source.offset + 4 * lane, 4,
                            AccessOf(warp, instruction, 1u << lane, false), known);
    world.races.TouchGlobal(reinterpret_cast<uint64_t>(target) + 4 * lane, 4,
                            AccessOf(warp, instruction, 1u << lane, true), known);
  });
  std::memcpy(target, source.data(), kMapBytes);
  NoteChange(warp, instruction, mask, target, instruction.scope);
  ++world.events;
  return Outcome::kNext;
}

Execute DecodeCopyAndFence(Instruction& instruction, Modifiers& modifiers) {
  for (const char* const part :
       {"global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"}) {
    if (!modifiers.Take(part)) return nullptr;
  }
  instruction.scope = modifiers.TakeScope();
  instruction.releases = true;
  instruction.converges = true;
  const auto& operands = instruction.operands;
  const bool known = operands.size() == 3 && operands[0].kind == Operand::kAddress &&
                     operands[1].kind == Operand::kAddress &&
                     operands[2].kind == Operand::kConstant && operands[2].bits == kMapBytes &&
                     instruction.scope != Scope::kNone;
  return known ? CopyAndFence : nullptr;
}

}  // namespace

TensorMap ReadTensorMap(Warp& warp, const Instruction& instruction, const Operand& address,
                        int lane, uint32_t lanes) {
  const Found found = FindMap(warp, instruction, address, lane);
  Races& races = warp.cta->grid->world->races;
  if (found.global && races.enabled) {
    const auto at = reinterpret_cast<uint64_t>(found.at);
    const Knowledge known = KnownByAny(warp, lanes);
    races.TouchGlobal(at, kMapBytes, AccessOf(warp, instruction, lanes, false), known);
    CheckFence(warp, instruction, lanes, at, known);
  }
  TensorMap map;
  std::memcpy(&map, found.at, kMapBytes);
  if (map.magic != TensorMap::kMagic) {
    Fail(warp, instruction, "there is no tensor map at " + Hex(AddressOf(warp, address, lane)));
  }
  const std::string broken = CheckTensorMap(map);
  if (!broken.empty()) Fail(warp, instruction, "the tensor map breaks a rule: " + broken);
  return map;
}

Execute DecodeTensorMap(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("replace")) return DecodeReplace(instruction, modifiers);
  return modifiers.Take("cp_fenceproxy") ? DecodeCopyAndFence(instruction, modifiers) : nullptr;
}

}  // namespace ptx
