// Loads, stores and atomics.
#include "tests/model/ptx/instructions/access.h"

#include <algorithm>

#include "tests/model/ptx/arithmetic/floats.h"
#include "tests/model/ptx/instructions/barrier.h"
#include "tests/model/ptx/instructions/mbarrier.h"
#include "tests/model/ptx/program/decode.h"

namespace ptx {

std::byte* Touch(Warp& warp, const Instruction& instruction, Space space, uint64_t address,
                 uint64_t bytes, int lane, bool write) {
  if (space == Space::kGeneric) {
    switch (address >> 56) {
      case kSharedWindow >> 56: space = Space::kShared; break;
      case kParamWindow >> 56: space = Space::kParam; break;
      case kLocalWindow >> 56: space = Space::kLocal; break;
      default: space = Space::kGlobal;
    }
    if (space != Space::kGlobal) address &= 0xffffffff;
  }
  if (address % bytes)
    Fail(warp, instruction,
         "the address " + std::to_string(address) + " is not a multiple of " +
             std::to_string(bytes));
  Access access = AccessOf(warp, instruction, 1u << lane, write);
  access.scope = instruction.scope;
  Races& races = warp.cta->grid->world->races;
  switch (space) {
    case Space::kShared: {
      const SharedPlace place = FindShared(warp, address, bytes, instruction);
      if (races.enabled)
        races.TouchShared(place.cta->cells, place.offset, bytes, access, KnownBy(warp, lane));
      return place.data();
    }
    case Space::kParam: {
      auto& parameters = warp.cta->grid->parameters;
      if (write || address + bytes > parameters.size())
        Fail(warp, instruction, "lies outside of the parameters");
      return parameters.data() + address;
    }
    case Space::kLocal: {
      auto& local = warp.cta->local[warp.index * 32 + lane];
      if (address + bytes > local.size())
        Fail(warp, instruction, "lies outside of the thread's local memory");
      return local.data() + address;
    }
    default: {
      std::byte* const at = FindGlobal(warp, address, bytes, instruction);
      if (races.enabled && space != Space::kConst) {
        races.TouchGlobal(reinterpret_cast<uint64_t>(at), bytes, access, KnownBy(warp, lane));
      }
      return at;
    }
  }
}

namespace {

const Operand& Element(const Operand& operand, int index) {
  return operand.kind == Operand::kVector ? operand.parts[index] : operand;
}

// Writes a loaded value into a register, which may be wider: signed values keep their sign.
void SetElement(Warp& warp, const Operand& to, int lane, const std::byte* from, Type type) {
  if (to.kind == Operand::kSink) return;
  uint64_t value = 0;
  const int bytes = Bytes(type);
  std::memcpy(&value, from, bytes);
  if (IsSigned(type) && bytes < 8) {
    const int shift = 64 - 8 * bytes;
    value = static_cast<uint64_t>(static_cast<int64_t>(value << shift) >> shift);
    const int width = Bytes(to.type);
    if (width < 8) value &= (uint64_t{1} << 8 * width) - 1;
  }
  Target(warp, to)[lane] = value;
}

// The key of an address for releases.
uint64_t Key(const std::byte* at) { return reinterpret_cast<uint64_t>(at); }

constexpr size_t kMostPolls = 16;  // words that a warp is expected to poll in one loop

// True if the warp has loaded the same value from the address before, and nothing has been released
// since: to acquire it again teaches nothing.
bool IsAcquired(const Warp& warp, uint64_t address, uint64_t value) {
  const auto poll = warp.polls.find(address);
  return poll != warp.polls.end() && poll->second.value == value &&
         poll->second.releases == warp.cta->grid->world->releases;
}

Outcome Load(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const int bytes = Bytes(instruction.type), count = instruction.count;
  const bool polls = instruction.scope != Scope::kNone && count == 1 &&
                     instruction.operands[0].kind == Operand::kRegister;
  const bool one_lane = (mask & (mask - 1)) == 0;
  ForLanes(mask, [&](int lane) {
    const uint64_t address = AddressOf(warp, instruction.operands[1], lane);
    const std::byte* const at =
        Touch(warp, instruction, instruction.space, address, bytes * count, lane, false);
    for (int i = 0; i < count; ++i) {
      SetElement(warp, Element(instruction.operands[0], i), lane, at + i * bytes, instruction.type);
    }
    if (instruction.scope == Scope::kNone) return;
    if (polls && one_lane && IsAcquired(warp, address, Target(warp, instruction.operands[0])[lane]))
      return;
    if (instruction.acquires)
      AcquireAt(warp, lane, Key(at), instruction.scope);
    else
      RelaxedReadAt(warp, lane, Key(at), instruction.scope);
  });
  if (!polls) return Outcome::kNext;
  // The same value again, and nothing has happened since: the warp waits for a change.
  const int lane = FirstLane(mask);
  const uint64_t address = AddressOf(warp, instruction.operands[1], lane);
  const World& world = *warp.cta->grid->world;
  const Warp::Poll now = {Target(warp, instruction.operands[0])[lane], world.events,
                          world.releases};
  if (warp.polls.size() > kMostPolls) warp.polls.clear();
  const auto [poll, is_new] = warp.polls.try_emplace(address, now);
  const bool again =
      !is_new && poll->second.value == now.value && poll->second.events == now.events;
  poll->second = now;
  return again ? Outcome::kAgain : Outcome::kNext;
}

Outcome Store(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const int bytes = Bytes(instruction.type), count = instruction.count;
  World& world = *warp.cta->grid->world;
  ForLanes(mask, [&](int lane) {
    const uint64_t address = AddressOf(warp, instruction.operands[0], lane);
    std::byte* const at =
        Touch(warp, instruction, instruction.space, address, bytes * count, lane, true);
    if (!world.released.empty()) OverwriteAt(warp, Key(at));
    if (instruction.releases)
      ReleaseAt(warp, lane, Key(at), instruction.scope);
    else if (instruction.scope != Scope::kNone)
      RelaxedWriteAt(warp, lane, Key(at), instruction.scope);
    for (int i = 0; i < count; ++i) {
      const uint64_t value = Source(warp, Element(instruction.operands[1], i))[lane];
      std::memcpy(at + i * bytes, &value, bytes);
    }
  });
  ++world.events;
  return Outcome::kNext;
}

// Takes the cache hints of loads and stores. They change neither values nor order.
void TakeCacheHints(Instruction& instruction, Modifiers& modifiers) {
  for (const char* hint :
       {"ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "L1::evict_normal", "L1::evict_unchanged",
        "L1::evict_first", "L1::evict_last", "L1::no_allocate", "L2::evict_normal",
        "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B"}) {
    modifiers.Take(hint);
  }
  if (modifiers.Take("L2::cache_hint") || modifiers.Take("level::cache_hint"))
    instruction.operands.pop_back();
}

// Takes .relaxed.gpu, .acquire.sys, .volatile, ...
bool TakeOrder(Instruction& instruction, Modifiers& modifiers) {
  instruction.acquires = modifiers.Take("acquire");
  instruction.releases = modifiers.Take("release");
  if (modifiers.Take("acq_rel")) instruction.acquires = instruction.releases = true;
  const bool relaxed = modifiers.Take("relaxed");
  const bool system = modifiers.Take("volatile") || modifiers.Take("mmio");
  modifiers.Take("weak");
  instruction.scope = modifiers.TakeScope();
  if (system) instruction.scope = Scope::kSystem;
  const bool strong = relaxed || system || instruction.acquires || instruction.releases;
  return strong == (instruction.scope != Scope::kNone);
}

// Decodes the modifiers and operands that loads and stores share. Returns false for an unknown
// form.
bool TakeForm(Instruction& instruction, Modifiers& modifiers) {
  instruction.space = modifiers.TakeSpace();
  TakeCacheHints(instruction, modifiers);
  if (!TakeOrder(instruction, modifiers)) return false;
  instruction.count = modifiers.TakeVector();
  instruction.type = modifiers.TakeType();
  return instruction.type != Type::kNone && Bytes(instruction.type) <= 8 &&
         instruction.operands.size() == 2;
}

Execute DecodeLoad(Instruction& instruction, Modifiers& modifiers) {
  return TakeForm(instruction, modifiers) ? Load : nullptr;
}

Execute DecodeStore(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("async")) return DecodeStoreAsync(instruction, modifiers);
  return TakeForm(instruction, modifiers) ? Store : nullptr;
}

enum Operation : int { kAdd, kExchange, kCompare, kAnd, kOr, kXor, kMin, kMax, kInc, kDec };

template <typename T>
T Combine(int operation, T old, T value, T second) {
  switch (operation) {
    case kAdd: return static_cast<T>(old + value);
    case kExchange: return value;
    case kCompare: return old == value ? second : old;
    case kMin: return std::min(old, value);
    case kMax: return std::max(old, value);
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (operation) {
      case kAnd: return static_cast<T>(old & value);
      case kOr: return static_cast<T>(old | value);
      case kXor: return static_cast<T>(old ^ value);
      case kInc: return old >= value ? 0 : static_cast<T>(old + 1);
      case kDec: return old == 0 || old > value ? value : static_cast<T>(old - 1);
      default: break;
    }
  }
  return old;
}

template <typename T>
uint64_t CombineBits(int operation, uint64_t old, uint64_t value, uint64_t second) {
  return Bits(Combine<T>(operation, As<T>(old), As<T>(value), As<T>(second)));
}

uint64_t CombineHalves(int operation, Type type, uint64_t old, uint64_t value) {
  uint64_t result = 0;
  const bool packed = Bytes(type) == 4, brain = type == Type::kBF16 || type == Type::kBF16x2;
  for (int half = 0; half < (packed ? 2 : 1); ++half) {
    const auto a = static_cast<uint16_t>(old >> 16 * half),
               b = static_cast<uint16_t>(value >> 16 * half);
    const float sum = brain ? Combine(operation, FloatOfBF16(a), FloatOfBF16(b), 0.f)
                            : Combine(operation, FloatOfF16(a), FloatOfF16(b), 0.f);
    result |= static_cast<uint64_t>(brain ? BF16OfFloat(sum) : F16OfFloat(sum)) << 16 * half;
  }
  return result;
}

}  // namespace

uint64_t CombineValues(int operation, Type type, uint64_t old, uint64_t value, uint64_t second) {
  switch (type) {
    case Type::kS32: return CombineBits<int32_t>(operation, old, value, second);
    case Type::kU32:
    case Type::kB32: return CombineBits<uint32_t>(operation, old, value, second);
    case Type::kS64: return CombineBits<int64_t>(operation, old, value, second);
    case Type::kU64:
    case Type::kB64: return CombineBits<uint64_t>(operation, old, value, second);
    case Type::kB16: return CombineBits<uint16_t>(operation, old, value, second);
    case Type::kF32: return CombineBits<float>(operation, old, value, second);
    case Type::kF64: return CombineBits<double>(operation, old, value, second);
    default: return CombineHalves(operation, type, old, value);
  }
}

namespace {

// atom (`flags` 0: the old value goes to operand 0) and red (`flags` 1).
Outcome Atomic(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const int first = instruction.flags ? 0 : 1, bytes = Bytes(instruction.type),
            count = instruction.count;
  ForLanes(mask, [&](int lane) {
    const uint64_t address = AddressOf(warp, instruction.operands[first], lane);
    std::byte* const at =
        Touch(warp, instruction, instruction.space, address, bytes * count, lane, true);
    if (instruction.releases)
      ReleaseAt(warp, lane, Key(at), instruction.scope);
    else
      RelaxedWriteAt(warp, lane, Key(at), instruction.scope);
    for (int i = 0; i < count; ++i) {
      uint64_t old = 0, second = 0;
      std::memcpy(&old, at + i * bytes, bytes);
      const uint64_t value = Source(warp, Element(instruction.operands[first + 1], i))[lane];
      if (instruction.variant == kCompare)
        second = Source(warp, instruction.operands[first + 2])[lane];
      const uint64_t result =
          CombineValues(instruction.variant, instruction.type, old, value, second);
      std::memcpy(at + i * bytes, &result, bytes);
      if (!instruction.flags && instruction.operands[0].kind != Operand::kSink) {
        SetElement(warp, Element(instruction.operands[0], i), lane,
                   reinterpret_cast<const std::byte*>(&old), instruction.type);
      }
    }
    if (instruction.acquires)
      AcquireAt(warp, lane, Key(at), instruction.scope);
    else if (!instruction.flags)
      RelaxedReadAt(warp, lane, Key(at), instruction.scope);
  });
  ++warp.cta->grid->world->events;
  return Outcome::kNext;
}

// The types that the ISA has for an operation.
bool HasType(int operation, Type type) {
  const auto one_of = [&](std::initializer_list<Type> types) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  switch (operation) {
    case kAdd:
      return one_of({Type::kU32, Type::kS32, Type::kU64, Type::kF16, Type::kF16x2, Type::kBF16,
                     Type::kBF16x2, Type::kF32, Type::kF64});
    case kExchange: return one_of({Type::kB32, Type::kB64});
    case kCompare: return one_of({Type::kB16, Type::kB32, Type::kB64});
    case kAnd:
    case kOr:
    case kXor: return one_of({Type::kB32, Type::kB64});
    case kMin:
    case kMax:
      return one_of({Type::kU32, Type::kS32, Type::kU64, Type::kS64, Type::kF16, Type::kF16x2,
                     Type::kBF16, Type::kBF16x2});
    default: return type == Type::kU32;
  }
}

Execute DecodeAtomic(Instruction& instruction, Modifiers& modifiers) {
  instruction.flags = instruction.opcode[0] == "red";
  if (modifiers.Take("async")) return nullptr;
  instruction.space = modifiers.TakeSpace();
  TakeCacheHints(instruction, modifiers);
  instruction.acquires = modifiers.Take("acquire");
  instruction.releases = modifiers.Take("release");
  if (modifiers.Take("acq_rel")) instruction.acquires = instruction.releases = true;
  modifiers.Take("relaxed");
  instruction.scope = modifiers.TakeScope();
  if (instruction.scope == Scope::kNone) instruction.scope = Scope::kGpu;
  instruction.variant =
      modifiers.TakeOneOf({"add", "exch", "cas", "and", "or", "xor", "min", "max", "inc", "dec"});
  modifiers.Take("noftz");
  instruction.count = modifiers.TakeVector();
  instruction.type = modifiers.TakeType();
  if (!HasType(instruction.variant, instruction.type)) return nullptr;
  const size_t operands = (instruction.flags ? 2 : 3) + (instruction.variant == kCompare ? 1 : 0);
  const int bytes = Bytes(instruction.type);
  if (instruction.variant < 0 || bytes < 2 || bytes > 8) return nullptr;
  return instruction.operands.size() == operands ? Atomic : nullptr;
}

}  // namespace

const DecoderTable& AccessDecoders() {
  static const auto& table = *new DecoderTable{
      {"ld", DecodeLoad},           {"ldu", DecodeLoad},   {"st", DecodeStore},
      {"atom", DecodeAtomic},       {"red", DecodeAtomic}, {"cp", DecodeCopyAsync},
      {"multimem", DecodeMultimem},
  };
  return table;
}

}  // namespace ptx
