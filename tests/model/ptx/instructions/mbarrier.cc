// mbarrier instructions, and the phases of the objects.
#include "tests/model/ptx/instructions/mbarrier.h"

#include <algorithm>
#include <vector>

#include "tests/model/ptx/program/decode.h"

namespace ptx {
namespace {

constexpr int64_t kMaxCount = (1 << 20) - 1;

// The 64 bits of an mbarrier in shared memory. The layout is opaque to programs; this one is the
// model's own.
struct Words {
  int64_t pending, initial, tx;
  uint64_t phase;

  static Words Load(const Cta& cta, uint32_t offset) {
    uint64_t bits;
    std::memcpy(&bits, cta.shared.data() + offset, sizeof bits);
    return {static_cast<int64_t>(bits & kMaxCount), static_cast<int64_t>(bits >> 20 & kMaxCount),
            static_cast<int64_t>(bits >> 41) - (1 << 20), bits >> 40 & 1};
  }
  void Store(Cta& cta, uint32_t offset) const {
    const uint64_t bits = static_cast<uint64_t>(pending) | static_cast<uint64_t>(initial) << 20 |
                          phase << 40 | static_cast<uint64_t>(tx + (1 << 20)) << 41;
    std::memcpy(cta.shared.data() + offset, &bits, sizeof bits);
  }
};

std::string NameOf(const Cta& cta, uint32_t offset) {
  return "the mbarrier at shared offset " + std::to_string(offset) + " of CTA " +
         std::to_string(cta.rank) + " of the cluster";
}

// The mbarrier that an instruction of a lane uses.
SharedPlace Find(Warp& warp, const Instruction& instruction, const Operand& address, int lane) {
  const uint64_t at = AddressOf(warp, address, lane);
  const SharedPlace place = FindShared(warp, at, 8, instruction);
  if (place.offset % 8) Fail(warp, instruction, "an mbarrier is 8-byte aligned");
  const auto object = place.cta->mbarriers.find(place.offset);
  if (object == place.cta->mbarriers.end() || !object->second.live) {
    Fail(warp, instruction, NameOf(*place.cta, place.offset) + " does not exist");
  }
  CheckInit(warp, lane, *place.cta, place.offset, instruction);
  return place;
}

Outcome Init(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    const SharedPlace place =
        FindShared(warp, AddressOf(warp, instruction.operands[0], lane), 8, instruction);
    if (place.offset % 8) Fail(warp, instruction, "an mbarrier is 8-byte aligned");
    const int64_t count = static_cast<uint32_t>(Source(warp, instruction.operands[1])[lane]);
    if (count < 1 || count > kMaxCount)
      Fail(warp, instruction, "the count is " + std::to_string(count));
    const Access access = AccessOf(warp, instruction, 1u << lane, true);
    // The words may have held data before: these accesses must have ended.
    warp.cta->grid->world->races.TouchShared(place.cta->cells, place.offset, 8, access,
                                             KnownBy(warp, lane));
    MbarrierState& object = place.cta->mbarriers[place.offset];
    object = MbarrierState();
    object.live = true;
    object.init = access;
    Words{count, count, 0, 0}.Store(*place.cta, place.offset);
  });
  ++warp.cta->grid->world->events;
  return Outcome::kNext;
}
Execute DecodeInit(Instruction& instruction) {
  return instruction.operands.size() == 2 ? Init : nullptr;
}

Outcome Invalidate(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    const SharedPlace place = Find(warp, instruction, instruction.operands[0], lane);
    place.cta->mbarriers[place.offset].live = false;
  });
  return Outcome::kNext;
}

// Lanes that name the same mbarrier act as one, with what all of them know.
struct SamePlace {
  SharedPlace place;
  uint32_t lanes;
};
std::vector<SamePlace> Places(Warp& warp, const Instruction& instruction, const Operand& address,
                              uint32_t mask) {
  std::vector<SamePlace> places;
  uint64_t last = 0;
  SamePlace* last_same = nullptr;
  ForLanes(mask, [&](int lane) {
    // Usually all lanes have one address.
    const uint64_t at = AddressOf(warp, address, lane);
    if (at == last) {
      SamePlace& same = *last_same;
      CheckInit(warp, lane, *same.place.cta, same.place.offset, instruction);
      same.lanes |= 1u << lane;
      return;
    }
    const SharedPlace place = Find(warp, instruction, address, lane);
    for (SamePlace& same : places) {
      if (same.place.cta == place.cta && same.place.offset == place.offset) {
        same.lanes |= 1u << lane;
        last = at, last_same = &same;
        return;
      }
    }
    places.push_back({place, 1u << lane});
    last = at, last_same = &places.back();
  });
  return places;
}

// mbarrier.expect_tx and complete_tx: `variant` is 1 or -1.
Outcome ChangeTx(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    const SharedPlace place = Find(warp, instruction, instruction.operands[0], lane);
    const int64_t bytes = static_cast<uint32_t>(Source(warp, instruction.operands[1])[lane]);
    UpdateMbarrier(*warp.cta->grid->world, *place.cta, place.offset, bytes * instruction.variant, 0,
                   nullptr, PlaceOf(instruction, nullptr));
  });
  return Outcome::kNext;
}

constexpr uint32_t kExpectTx = 1, kDrop = 2;

// mbarrier.arrive and arrive_drop. Operands: the state (or none), the address, and a count or
// bytes.
Outcome Arrive(Warp& warp, const Instruction& instruction, uint32_t mask) {
  World& world = *warp.cta->grid->world;
  const Operand* const amount =
      instruction.operands.size() > 2 ? &instruction.operands[2] : nullptr;
  for (const SamePlace& same : Places(warp, instruction, instruction.operands[1], mask)) {
    const uint64_t phase = Words::Load(*same.place.cta, same.place.offset).phase;
    int64_t arrivals = 0, bytes = 0;
    ForLanes(same.lanes, [&](int lane) {
      const int64_t value = amount ? static_cast<uint32_t>(Source(warp, *amount)[lane]) : 1;
      arrivals += instruction.flags & kExpectTx ? 1 : value;
      bytes += instruction.flags & kExpectTx ? value : 0;
      if (instruction.operands[0].kind == Operand::kRegister)
        Target(warp, instruction.operands[0])[lane] = phase;
    });
    if (instruction.flags & kDrop) {
      Words words = Words::Load(*same.place.cta, same.place.offset);
      words.initial -= arrivals;
      words.Store(*same.place.cta, same.place.offset);
    }
    Knowledge known;
    if (instruction.releases) known = Publish(warp, same.lanes);
    UpdateMbarrier(world, *same.place.cta, same.place.offset, bytes, arrivals, &known,
                   PlaceOf(instruction, nullptr));
  }
  return Outcome::kNext;
}

// mbarrier.try_wait and test_wait. Operands: predicate, address, phase (`variant` 0: a state, 1: a
// parity), time.
Outcome TryWait(Warp& warp, const Instruction& instruction, uint32_t mask) {
  uint32_t over = 0;
  for (const SamePlace& same : Places(warp, instruction, instruction.operands[1], mask)) {
    const Words words = Words::Load(*same.place.cta, same.place.offset);
    ForLanes(same.lanes, [&](int lane) {
      const uint64_t awaited = Source(warp, instruction.operands[2])[lane] & 1;
      if (words.phase == awaited) return;
      over |= 1u << lane;
    });
    if (over & same.lanes && instruction.acquires) {
      Acquire(warp, over & same.lanes,
              same.place.cta->mbarriers[same.place.offset].passed[words.phase ^ 1]);
    }
  }
  SetPredicate(warp, instruction.operands[0].index, over, mask);
  return over == mask ? Outcome::kNext : Outcome::kAgain;
}

Outcome PendingCount(Warp& warp, const Instruction& instruction, uint32_t) {
  Fail(warp, instruction, "mbarrier.pending_count is not in the model");
}

void TakeOrder(Instruction& instruction, Modifiers& modifiers, bool& order) {
  order = !modifiers.Take("relaxed");
  modifiers.Take(&order == &instruction.acquires ? "acquire" : "release");
  instruction.scope = modifiers.TakeScope();
}

Execute DecodeArrive(Instruction& instruction, Modifiers& modifiers, bool drop) {
  instruction.flags = (modifiers.Take("expect_tx") ? kExpectTx : 0) | (drop ? kDrop : 0);
  TakeOrder(instruction, modifiers, instruction.releases);
  if (!instruction.operands.empty() && instruction.operands[0].kind == Operand::kAddress) {
    instruction.operands.insert(instruction.operands.begin(), Operand{.kind = Operand::kSink});
  }
  const size_t count = instruction.operands.size();
  return count == 3 || (count == 2 && !(instruction.flags & kExpectTx)) ? Arrive : nullptr;
}

Execute DecodeMbarrier(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("pending_count")) return modifiers.Take("b64") ? PendingCount : nullptr;
  if (modifiers.TakeSpace() != Space::kShared && instruction.operands.empty()) return nullptr;
  if (!modifiers.Take("b64")) return nullptr;
  if (modifiers.Take("init")) return DecodeInit(instruction);
  if (modifiers.Take("inval")) return Invalidate;
  if (modifiers.Take("arrive")) return DecodeArrive(instruction, modifiers, false);
  if (modifiers.Take("arrive_drop")) return DecodeArrive(instruction, modifiers, true);
  const int change = modifiers.TakeOneOf({"expect_tx", "complete_tx"});
  if (change >= 0) {
    instruction.variant = change == 0 ? 1 : -1;
    modifiers.Take("relaxed");
    modifiers.TakeScope();
    return instruction.operands.size() == 2 ? ChangeTx : nullptr;
  }
  if (modifiers.Take("try_wait") || modifiers.Take("test_wait")) {
    instruction.variant = modifiers.Take("parity");
    TakeOrder(instruction, modifiers, instruction.acquires);
    return instruction.operands.size() >= 3 ? TryWait : nullptr;
  }
  return nullptr;
}

}  // namespace

void UpdateMbarrier(World& world, Cta& cta, uint32_t offset, int64_t expect, int64_t arrivals,
                    const Knowledge* known, const std::string& by) {
  const auto object = cta.mbarriers.find(offset);
  if (object == cta.mbarriers.end() || !object->second.live)
    throw Stop(by + ": " + NameOf(cta, offset) + " does not exist");
  Words words = Words::Load(cta, offset);
  if (known != nullptr) object->second.arriving.Join(*known);
  words.pending -= arrivals;
  words.tx += expect;
  if (words.pending < 0) {
    throw Stop(by + ": " + NameOf(cta, offset) + " has more arrivals than its count of " +
               std::to_string(words.initial));
  }
  if (words.tx <= -(1 << 20) || words.tx >= 1 << 20) {
    throw Stop(by + ": the tx-count of " + NameOf(cta, offset) +
               " leaves its range: " + std::to_string(words.tx));
  }
  if (words.pending == 0 && words.tx == 0) {
    // A wait for a later phase passes on the earlier ones, too: each phase's arrivals waited for
    // the one before.
    object->second.passed[words.phase] = object->second.arriving;
    words.phase ^= 1;
    words.pending = words.initial;
  }
  words.Store(cta, offset);
  ++world.events;
}

void CheckInit(Warp& warp, int lane, Cta& cta, uint32_t offset, const Instruction& instruction) {
  Races& races = warp.cta->grid->world->races;
  if (!races.enabled) return;
  const Access& init = cta.mbarriers[offset].init;
  if (init.agent == warp.agent && init.lanes >> lane & 1) return;
  const Knowledge& known = KnownBy(warp, lane);
  if (known.order.Knows(init.agent, init.clock, init.lanes) ||
      known.inits.Knows(init.agent, init.clock, init.lanes))
    return;
  races.Add("an mbarrier is used, but its init is not known",
            AccessOf(warp, instruction, 1u << lane, false), &init,
            "fence.mbarrier_init and a barrier between them would order them");
}

const DecoderTable& MbarrierDecoders() {
  static const auto& table = *new DecoderTable{{"mbarrier", DecodeMbarrier}};
  return table;
}

}  // namespace ptx
