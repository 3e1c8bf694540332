// multimem: one address stands for the same place on all GPUs of a multicast object.
#include <vector>

#include "tests/model/ptx/instructions/access.h"
#include "tests/model/ptx/instructions/barrier.h"

namespace ptx {
namespace {

const Operand& Element(const Operand& operand, int index) {
  return operand.kind == Operand::kVector ? operand.parts[index] : operand;
}

// The places of an access on all GPUs, each entered in the race check.
std::vector<std::byte*> Places(Warp& warp, const Instruction& instruction, const Operand& address,
                               int lane, bool write) {
  const uint64_t at = AddressOf(warp, address, lane);
  const uint64_t bytes = static_cast<uint64_t>(Bytes(instruction.type)) * instruction.count;
  World& world = *warp.cta->grid->world;
  const std::vector<uint64_t> targets = world.memory.Multicast(at, bytes);
  if (targets.empty())
    Fail(warp, instruction, "there is no multicast object at " + std::to_string(at));
  if (at % bytes)
    Fail(warp, instruction, "the address is not a multiple of " + std::to_string(bytes));
  std::vector<std::byte*> places;
  Access access = AccessOf(warp, instruction, 1u << lane, write);
  access.scope = instruction.scope;
  for (const uint64_t target : targets) {
    std::byte* const place = FindGlobal(warp, target, bytes, instruction);
    world.races.TouchGlobal(reinterpret_cast<uint64_t>(place), bytes, access, KnownBy(warp, lane));
    places.push_back(place);
  }
  return places;
}

Outcome StoreAll(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const int bytes = Bytes(instruction.type);
  ForLanes(mask, [&](int lane) {
    for (std::byte* const place : Places(warp, instruction, instruction.operands[0], lane, true)) {
      const uint64_t key = reinterpret_cast<uint64_t>(place);
      OverwriteAt(warp, key);
      if (instruction.releases)
        ReleaseAt(warp, lane, key, instruction.scope);
      else if (instruction.scope != Scope::kNone)
        RelaxedWriteAt(warp, lane, key, instruction.scope);
      for (int i = 0; i < instruction.count; ++i) {
        const uint64_t value = Source(warp, Element(instruction.operands[1], i))[lane];
        std::memcpy(place + i * bytes, &value, bytes);
      }
    }
  });
  ++warp.cta->grid->world->events;
  return Outcome::kNext;
}

Outcome ReduceAll(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const int bytes = Bytes(instruction.type);
  ForLanes(mask, [&](int lane) {
    for (std::byte* const place : Places(warp, instruction, instruction.operands[0], lane, true)) {
      const uint64_t key = reinterpret_cast<uint64_t>(place);
      if (instruction.releases)
        ReleaseAt(warp, lane, key, instruction.scope);
      else
        RelaxedWriteAt(warp, lane, key, instruction.scope);
      for (int i = 0; i < instruction.count; ++i) {
        uint64_t old = 0;
        std::memcpy(&old, place + i * bytes, bytes);
        const uint64_t value = Source(warp, Element(instruction.operands[1], i))[lane];
        const uint64_t result = CombineValues(instruction.variant, instruction.type, old, value, 0);
        std::memcpy(place + i * bytes, &result, bytes);
      }
    }
  });
  ++warp.cta->grid->world->events;
  return Outcome::kNext;
}

Outcome LoadReduced(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const int bytes = Bytes(instruction.type);
  ForLanes(mask, [&](int lane) {
    const std::vector<std::byte*> places =
        Places(warp, instruction, instruction.operands[1], lane, false);
    for (int i = 0; i < instruction.count; ++i) {
      uint64_t result = 0;
      std::memcpy(&result, places[0] + i * bytes, bytes);
      for (size_t gpu = 1; gpu < places.size(); ++gpu) {
        uint64_t value = 0;
        std::memcpy(&value, places[gpu] + i * bytes, bytes);
        result = CombineValues(instruction.variant, instruction.type, result, value, 0);
      }
      Target(warp, Element(instruction.operands[0], i))[lane] = result;
    }
    for (const std::byte* const place : places) {
      const uint64_t key = reinterpret_cast<uint64_t>(place);
      if (instruction.acquires)
        AcquireAt(warp, lane, key, instruction.scope);
      else if (instruction.scope != Scope::kNone)
        RelaxedReadAt(warp, lane, key, instruction.scope);
    }
  });
  return Outcome::kNext;
}

}  // namespace

Execute DecodeMultimem(Instruction& instruction, Modifiers& modifiers) {
  const int form = modifiers.TakeOneOf({"st", "red", "ld_reduce"});
  modifiers.TakeSpace();
  instruction.acquires = modifiers.Take("acquire");
  instruction.releases = modifiers.Take("release");
  const bool relaxed = modifiers.Take("relaxed");
  modifiers.Take("weak");
  instruction.scope = modifiers.TakeScope();
  // Without a modifier, red is relaxed at the scope of the system.
  if (form == 1 && instruction.scope == Scope::kNone) instruction.scope = Scope::kSystem;
  if (relaxed && instruction.scope == Scope::kNone) return nullptr;
  instruction.count = modifiers.TakeVector();
  if (form > 0) {
    const int operation = modifiers.TakeOneOf({"add", "and", "or", "xor", "min", "max"});
    static constexpr int kOperations[] = {0, 3, 4, 5, 6, 7};  // of CombineValues
    if (operation < 0) return nullptr;
    instruction.variant = kOperations[operation];
  }
  instruction.type = modifiers.TakeType();
  if (instruction.type == Type::kNone || instruction.operands.size() != 2) return nullptr;
  switch (form) {
    case 0: return StoreAll;
    case 1: return ReduceAll;
    case 2: return LoadReduced;
    default: return nullptr;
  }
}

}  // namespace ptx
