// Instructions that steer a warp, and those between its lanes.
#include <algorithm>

#include "tests/model/ptx/program/decode.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {
namespace {

Outcome Branch(Warp&, const Instruction&, uint32_t) { return Outcome::kJump; }
Outcome Return(Warp&, const Instruction&, uint32_t) { return Outcome::kExit; }
Outcome Nothing(Warp&, const Instruction&, uint32_t) { return Outcome::kNext; }
Outcome Trap(Warp& warp, const Instruction& instruction, uint32_t) {
  Fail(warp, instruction, "trap");
}

Execute DecodeBranch(Instruction& instruction, Modifiers& modifiers) {
  modifiers.Take("uni");
  return instruction.operands.size() == 1 && instruction.operands[0].kind == Operand::kLabel
             ? Branch
             : nullptr;
}
Execute DecodeReturn(Instruction&, Modifiers& modifiers) {
  modifiers.Take("uni");
  return Return;
}
Execute DecodeTrap(Instruction&, Modifiers&) { return Trap; }
// Hints that change no value and no order.
Execute DecodeHint(Instruction&, Modifiers& modifiers) {
  modifiers.TakeType();
  return Nothing;
}
// Launches do not overlap with the one before in the model, so a dependent one has nothing to wait
// for.
Execute DecodeGridDependency(Instruction&, Modifiers& modifiers) {
  return modifiers.Take("launch_dependents") || modifiers.Take("wait") ? Nothing : nullptr;
}

// shfl.sync d|p, a, b, c, members: `variant` is idx, up, down or bfly.
Outcome Shuffle(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Lanes from = Source(warp, instruction.operands[1]);
  const Lanes& by = Source(warp, instruction.operands[2]);
  const Lanes& clamp = Source(warp, instruction.operands[3]);
  Lanes& to = Target(warp, instruction.operands[0]);
  uint32_t valid = 0;
  ForLanes(mask, [&](int lane) {
    const int segment = clamp[lane] >> 8 & 31, limit = clamp[lane] & 31;
    const int last = (lane & segment) | (limit & ~segment), first = lane & segment;
    const int distance = by[lane] & 31;
    int source = 0;
    bool ok = false;
    switch (instruction.variant) {
      case 0: source = first | (distance & ~segment), ok = source <= last; break;
      case 1: source = lane - distance, ok = source >= last; break;
      case 2: source = lane + distance, ok = source <= last; break;
      default: source = lane ^ distance, ok = source <= last;
    }
    if (!ok) source = lane;
    valid |= static_cast<uint32_t>(ok) << lane;
    to[lane] = from[source];
  });
  if (instruction.operands[0].second >= 0)
    SetPredicate(warp, instruction.operands[0].second, valid, mask);
  return Outcome::kNext;
}
Execute DecodeShuffle(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("sync")) return nullptr;
  instruction.variant = modifiers.TakeOneOf({"idx", "up", "down", "bfly"});
  if (instruction.variant < 0 || Bytes(modifiers.TakeType()) != 4 ||
      instruction.operands.size() != 5)
    return nullptr;
  instruction.converges = true;
  instruction.members = 4;
  return Shuffle;
}

Outcome Elect(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const int leader = FirstLane(mask);
  const Operand& to = instruction.operands[0];
  if (to.kind == Operand::kRegister)
    ForLanes(mask, [&](int lane) { Target(warp, to)[lane] = leader; });
  if (to.second >= 0) SetPredicate(warp, to.second, 1u << leader, mask);
  return Outcome::kNext;
}
Execute DecodeElect(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("sync")) return nullptr;
  instruction.converges = true;
  instruction.members = 1;
  return Elect;
}

// vote.sync: `variant` is ballot, any, all or uni.
Outcome Vote(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const uint32_t holds = PredicateOf(warp, instruction.operands[1]) & mask;
  if (instruction.variant == 0) {
    ForLanes(mask, [&](int lane) { Target(warp, instruction.operands[0])[lane] = holds; });
    return Outcome::kNext;
  }
  const bool all = holds == mask, none = holds == 0;
  const bool result = instruction.variant == 1   ? !none
                      : instruction.variant == 2 ? all
                                                 : all || none;
  SetPredicate(warp, instruction.operands[0].index, result ? kAllLanes : 0, mask);
  return Outcome::kNext;
}
Execute DecodeVote(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("sync")) return nullptr;
  instruction.variant = modifiers.TakeOneOf({"ballot", "any", "all", "uni"});
  modifiers.TakeType();
  instruction.converges = true;
  instruction.members = 2;
  return instruction.variant < 0 ? nullptr : Vote;
}

// match.any.sync and match.all.sync.
Outcome Match(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Lanes values = Source(warp, instruction.operands[1]);
  uint32_t all = 0;
  ForLanes(mask, [&](int lane) {
    uint32_t same = 0;
    ForLanes(mask, [&](int other) {
      same |= static_cast<uint32_t>(values[other] == values[lane]) << other;
    });
    const bool every = same == mask;
    all |= static_cast<uint32_t>(every) << lane;
    Target(warp, instruction.operands[0])[lane] = instruction.variant == 0 || every ? same : 0;
  });
  if (instruction.operands[0].second >= 0)
    SetPredicate(warp, instruction.operands[0].second, all, mask);
  return Outcome::kNext;
}
Execute DecodeMatch(Instruction& instruction, Modifiers& modifiers) {
  instruction.variant = modifiers.TakeOneOf({"any", "all"});
  if (instruction.variant < 0 || !modifiers.Take("sync")) return nullptr;
  modifiers.TakeType();
  instruction.converges = true;
  instruction.members = 2;
  return Match;
}

// redux.sync: `variant` is add, min, max, and, or or xor.
Outcome Reduce(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Lanes values = Source(warp, instruction.operands[1]);
  const bool is_signed = IsSigned(instruction.type);
  uint32_t result = static_cast<uint32_t>(values[FirstLane(mask)]);
  ForLanes(mask & (mask - 1), [&](int lane) {
    const uint32_t value = static_cast<uint32_t>(values[lane]);
    const bool less = is_signed ? As<int32_t>(value) < As<int32_t>(result) : value < result;
    switch (instruction.variant) {
      case 0: result += value; break;
      case 1: result = less ? value : result; break;
      case 2: result = less ? result : value; break;
      case 3: result &= value; break;
      case 4: result |= value; break;
      default: result ^= value;
    }
  });
  ForLanes(mask, [&](int lane) { Target(warp, instruction.operands[0])[lane] = result; });
  return Outcome::kNext;
}
Execute DecodeReduce(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("sync")) return nullptr;
  instruction.variant = modifiers.TakeOneOf({"add", "min", "max", "and", "or", "xor"});
  instruction.type = modifiers.TakeType();
  if (instruction.variant < 0 || Bytes(instruction.type) != 4 || IsFloat(instruction.type))
    return nullptr;
  instruction.converges = true;
  instruction.members = 2;
  return Reduce;
}

Outcome ActiveMask(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) { Target(warp, instruction.operands[0])[lane] = mask; });
  return Outcome::kNext;
}
Execute DecodeActiveMask(Instruction&, Modifiers& modifiers) {
  return Bytes(modifiers.TakeType()) == 4 ? ActiveMask : nullptr;
}

// setmaxnreg moves registers between the warps of a CTA: .dec returns some, .inc waits until there
// are enough.
Outcome SetMaxRegisters(Warp& warp, const Instruction& instruction, uint32_t) {
  const int wanted = static_cast<int>(instruction.operands[0].bits), now = warp.registers_limit;
  if (wanted < 24 || wanted > 256 || wanted % 8) {
    Fail(warp, instruction, "the number of registers is not a multiple of 8 from 24 to 256");
  }
  const bool grows = instruction.variant == 0;
  if (grows ? wanted < now : wanted > now) {
    Fail(warp, instruction, "the warp has " + std::to_string(now) + " registers");
  }
  Cta* const cta = warp.cta;
  World* const world = cta->grid->world;
  if (!grows) {
    cta->register_pool += (now - wanted) * 32;
    warp.registers_limit = wanted;
    ++world->events;
    return Outcome::kNext;
  }
  warp.wait = {"setmaxnreg.inc " + std::to_string(wanted), [&warp, cta, wanted] {
                 const int64_t more = (wanted - warp.registers_limit) * 32;
                 if (more > cta->register_pool) return false;
                 cta->register_pool -= more;
                 warp.registers_limit = wanted;
                 return true;
               }};
  return Outcome::kBlocked;
}
Execute DecodeSetMaxRegisters(Instruction& instruction, Modifiers& modifiers) {
  instruction.variant = modifiers.TakeOneOf({"inc", "dec"});
  if (instruction.variant < 0 || !modifiers.Take("sync") || !modifiers.Take("aligned"))
    return nullptr;
  modifiers.TakeType();
  instruction.converges = true;
  return instruction.operands.size() == 1 && instruction.operands[0].kind == Operand::kConstant
             ? SetMaxRegisters
             : nullptr;
}

// mapa: the address that another CTA of the cluster has for the same variable.
Outcome MapAddress(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Operand& from = instruction.operands[1];
  const Lanes& rank = Source(warp, instruction.operands[2]);
  Lanes& to = Target(warp, instruction.operands[0]);
  ForLanes(mask, [&](int lane) {
    const uint64_t address =
        from.kind == Operand::kSymbol ? SymbolAddress(warp, from) : Source(warp, from)[lane];
    to[lane] = (address & ~uint64_t{0xff000000}) | (rank[lane] & 0xff) << 24;
  });
  return Outcome::kNext;
}
Execute DecodeMapAddress(Instruction& instruction, Modifiers& modifiers) {
  modifiers.Take("shared::cluster");
  instruction.type = modifiers.TakeType();
  return instruction.operands.size() == 3 ? MapAddress : nullptr;
}
// getctarank: the CTA of an address.
Outcome RankOfAddress(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Operand& from = instruction.operands[1];
  ForLanes(mask, [&](int lane) {
    const uint64_t address =
        from.kind == Operand::kSymbol ? SymbolAddress(warp, from) : Source(warp, from)[lane];
    Target(warp, instruction.operands[0])[lane] = static_cast<uint32_t>(address) >> 24;
  });
  return Outcome::kNext;
}
Execute DecodeRankOfAddress(Instruction& instruction, Modifiers& modifiers) {
  modifiers.Take("shared::cluster");
  instruction.type = modifiers.TakeType();
  return RankOfAddress;
}

}  // namespace

const DecoderTable& ControlDecoders() {
  static const auto& table = *new DecoderTable{
      {"bra", DecodeBranch},
      {"ret", DecodeReturn},
      {"exit", DecodeReturn},
      {"trap", DecodeTrap},
      {"nanosleep", DecodeHint},
      {"pmevent", DecodeHint},
      {"griddepcontrol", DecodeGridDependency},
      {"shfl", DecodeShuffle},
      {"elect", DecodeElect},
      {"vote", DecodeVote},
      {"match", DecodeMatch},
      {"redux", DecodeReduce},
      {"activemask", DecodeActiveMask},
      {"setmaxnreg", DecodeSetMaxRegisters},
      {"mapa", DecodeMapAddress},
      {"getctarank", DecodeRankOfAddress},
  };
  return table;
}

}  // namespace ptx
