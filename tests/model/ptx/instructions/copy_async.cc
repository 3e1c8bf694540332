// cp.async (not bulk): 4 to 16 bytes from global to shared memory, beside the thread; and st.async.
#include <algorithm>

#include "tests/model/ptx/instructions/access.h"
#include "tests/model/ptx/instructions/mbarrier.h"

namespace ptx {
namespace {

// One copy of a lane. Its accesses are generic ones, of an agent of their own.
class Copy : public AsyncOperation {
 public:
  using AsyncOperation::AsyncOperation;
  bool Step(World& world) override {
    if (copied_bytes > 0) {
      Access read = access;
      read.write = false;
      world.races.TouchGlobal(reinterpret_cast<uint64_t>(from), copied_bytes, read, known);
      std::memcpy(cta->shared.data() + to, from, copied_bytes);
    }
    std::memset(cta->shared.data() + to + copied_bytes, 0, bytes - copied_bytes);
    world.races.TouchShared(cta->cells, to, bytes, access, known);
    --cta->pending_writes;
    --group->writes;
    group->all.order.Learn(access.agent, access.clock);
    ++world.events;
    return true;
  }
  const std::byte* from = nullptr;
  uint32_t to = 0, bytes = 0, copied_bytes = 0;
  Access access;
  Knowledge known;
  std::shared_ptr<AsyncGroup> group;
};

Outcome CopyAsync(Warp& warp, const Instruction& instruction, uint32_t mask) {
  World& world = *warp.cta->grid->world;
  const auto bytes = static_cast<uint32_t>(instruction.operands[2].bits);
  ForLanes(mask, [&](int lane) {
    const SharedPlace to =
        FindShared(warp, AddressOf(warp, instruction.operands[0], lane), bytes, instruction);
    const uint64_t from = AddressOf(warp, instruction.operands[1], lane);
    if (to.cta != warp.cta) Fail(warp, instruction, "copies into another CTA's shared memory");
    if (to.offset % bytes || from % bytes)
      Fail(warp, instruction, "an address is not a multiple of " + std::to_string(bytes));
    auto copy = std::make_unique<Copy>(*warp.cta);
    copy->to = to.offset;
    copy->bytes = copy->copied_bytes = bytes;
    if (instruction.operands.size() > 3) {
      const Operand& size = instruction.operands[3];
      copy->copied_bytes =
          std::min<uint32_t>(bytes, static_cast<uint32_t>(Source(warp, size)[lane]));
    }
    if (copy->copied_bytes > 0)
      copy->from = FindGlobal(warp, from, copy->copied_bytes, instruction);
    copy->known = Publish(warp, 1u << lane);
    copy->access = AccessOf(warp, instruction, kAllLanes, true);
    std::tie(copy->access.agent, copy->access.clock) = world.AgentFor(warp, copy->known);
    ThreadGroups& groups = warp.copies[lane];
    if (groups.open == nullptr) groups.open = std::make_shared<AsyncGroup>();
    ++groups.open->writes;
    ++warp.cta->pending_writes;
    copy->group = groups.open;
    world.Add(std::move(copy));
  });
  return Outcome::kNext;
}

Outcome Commit(Warp& warp, const Instruction&, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    ThreadGroups& groups = warp.copies[lane];
    groups.committed.push_back(groups.open ? std::move(groups.open)
                                           : std::make_shared<AsyncGroup>());
    groups.open = nullptr;
  });
  return Outcome::kNext;
}

// Returns true once all but the newest `left` groups of the lanes have ended; the lanes then know
// it.
bool Ended(Warp& warp, uint32_t mask, size_t left) {
  for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
    const int lane = FirstLane(lanes);
    auto& committed = warp.copies[lane].committed;
    while (committed.size() > left) {
      if (committed.front()->writes > 0) return false;
      Acquire(warp, 1u << lane, committed.front()->all);
      warp.copied[lane].Join(committed.front()->all.order);
      committed.pop_front();
    }
  }
  return true;
}

// cp.async.wait_group N, and wait_all (`variant` 1), which commits first.
Outcome WaitGroup(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const size_t left = instruction.variant ? 0 : static_cast<size_t>(instruction.operands[0].bits);
  if (instruction.variant) Commit(warp, instruction, mask);
  warp.wait = {"cp.async.wait_group", [&warp, mask, left] { return Ended(warp, mask, left); }};
  return Outcome::kBlocked;
}

// Arrives on an mbarrier once the earlier copies of its thread have ended.
class ArriveLater : public AsyncOperation {
 public:
  using AsyncOperation::AsyncOperation;
  bool Step(World& world) override {
    for (const auto& group : groups) {
      if (group->writes > 0) return false;
    }
    for (const auto& group : groups) known.Join(group->all);
    UpdateMbarrier(world, *target, offset, 0, 1, &known, by);
    return true;
  }
  Cta* target = nullptr;
  uint32_t offset = 0;
  std::vector<std::shared_ptr<AsyncGroup>> groups;
  Knowledge known;
  std::string by;
};

Outcome MbarrierArrive(Warp& warp, const Instruction& instruction, uint32_t mask) {
  World& world = *warp.cta->grid->world;
  ForLanes(mask, [&](int lane) {
    const SharedPlace place =
        FindShared(warp, AddressOf(warp, instruction.operands[0], lane), 8, instruction);
    CheckInit(warp, lane, *place.cta, place.offset, instruction);
    // Without .noinc the pending count grows by one first, so that the arrival changes nothing in
    // sum.
    if (instruction.variant == 0) {
      UpdateMbarrier(world, *place.cta, place.offset, 0, -1, nullptr,
                     PlaceOf(instruction, nullptr));
    }
    auto arrive = std::make_unique<ArriveLater>(*warp.cta);
    arrive->target = place.cta;
    arrive->offset = place.offset;
    arrive->by = PlaceOf(instruction, nullptr);
    arrive->groups.assign(warp.copies[lane].committed.begin(), warp.copies[lane].committed.end());
    if (warp.copies[lane].open) arrive->groups.push_back(warp.copies[lane].open);
    world.Add(std::move(arrive));
  });
  return Outcome::kNext;
}

// st.async: a store into shared memory of the cluster that completes bytes on an mbarrier there.
class RemoteStore : public AsyncOperation {
 public:
  using AsyncOperation::AsyncOperation;
  bool Step(World& world) override {
    world.races.TouchShared(target->cells, offset, data.size(), access, known);
    std::memcpy(target->shared.data() + offset, data.data(), data.size());
    --target->pending_writes;
    known.order.Learn(access.agent, access.clock);
    UpdateMbarrier(world, *target, mbarrier, -static_cast<int64_t>(data.size()), 0, &known, by);
    return true;
  }
  Cta* target = nullptr;
  uint32_t offset = 0, mbarrier = 0;
  std::vector<std::byte> data;
  Access access;
  Knowledge known;
  std::string by;
};

Outcome StoreAsync(Warp& warp, const Instruction& instruction, uint32_t mask) {
  World& world = *warp.cta->grid->world;
  const int bytes = Bytes(instruction.type), count = instruction.count;
  ForLanes(mask, [&](int lane) {
    const SharedPlace to = FindShared(warp, AddressOf(warp, instruction.operands[0], lane),
                                      bytes * count, instruction);
    const SharedPlace object =
        FindShared(warp, AddressOf(warp, instruction.operands[2], lane), 8, instruction);
    if (to.cta != object.cta)
      Fail(warp, instruction, "the data and the mbarrier are in different CTAs");
    CheckInit(warp, lane, *object.cta, object.offset, instruction);
    auto store = std::make_unique<RemoteStore>(*warp.cta);
    store->target = to.cta;
    store->offset = to.offset;
    store->mbarrier = object.offset;
    store->by = PlaceOf(instruction, nullptr);
    const Operand& value = instruction.operands[1];
    for (int i = 0; i < count; ++i) {
      const uint64_t bits =
          Source(warp, value.kind == Operand::kVector ? value.parts[i] : value)[lane];
      const auto* const begin = reinterpret_cast<const std::byte*>(&bits);
      store->data.insert(store->data.end(), begin, begin + bytes);
    }
    store->known = Publish(warp, 1u << lane);
    store->access = AccessOf(warp, instruction, kAllLanes, true);
    std::tie(store->access.agent, store->access.clock) = world.AgentFor(warp, store->known);
    ++to.cta->pending_writes;
    world.Add(std::move(store));
  });
  return Outcome::kNext;
}

}  // namespace

Execute DecodeCopyAsync(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("async") || modifiers.Take("bulk")) return nullptr;
  if (modifiers.Take("commit_group")) return Commit;
  if (modifiers.Take("wait_group")) return instruction.operands.size() == 1 ? WaitGroup : nullptr;
  if (modifiers.Take("wait_all")) {
    instruction.variant = 1;
    return WaitGroup;
  }
  if (modifiers.Take("mbarrier")) {
    if (!modifiers.Take("arrive")) return nullptr;
    instruction.variant = modifiers.Take("noinc");
    modifiers.TakeSpace();
    return modifiers.Take("b64") ? MbarrierArrive : nullptr;
  }
  const bool around_l1 = modifiers.Take("cg");
  if (!around_l1 && !modifiers.Take("ca")) return nullptr;
  if (!modifiers.Take("shared") && !modifiers.Take("shared::cta")) return nullptr;
  if (!modifiers.Take("global")) return nullptr;
  modifiers.TakeOneOf({"L2::64B", "L2::128B", "L2::256B"});
  if (modifiers.Take("L2::cache_hint")) instruction.operands.pop_back();
  const size_t count = instruction.operands.size();
  if (count < 3 || count > 4 || instruction.operands[2].kind != Operand::kConstant) return nullptr;
  const int64_t bytes = instruction.operands[2].bits;
  // A predicate as the fourth operand (ignore-src) is not in the model.
  if (count == 4 && instruction.operands[3].kind == Operand::kPredicate) return nullptr;
  if (around_l1) return bytes == 16 ? CopyAsync : nullptr;
  return bytes == 4 || bytes == 8 || bytes == 16 ? CopyAsync : nullptr;
}

Execute DecodeStoreAsync(Instruction& instruction, Modifiers& modifiers) {
  modifiers.Take("weak");
  if (!modifiers.Take("shared::cluster") || !modifiers.Take("mbarrier::complete_tx::bytes"))
    return nullptr;
  instruction.count = modifiers.TakeVector();
  instruction.type = modifiers.TakeType();
  return instruction.operands.size() == 3 && instruction.type != Type::kNone ? StoreAsync : nullptr;
}

}  // namespace ptx
