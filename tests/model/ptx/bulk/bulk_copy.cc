// cp.async.bulk and cp.reduce.async.bulk of consecutive bytes, and cp.async.bulk.prefetch.
#include <string_view>

#include "tests/model/ptx/bulk/bulk.h"

namespace ptx {
namespace {

// The operands are the destination, the source, the size, then an mbarrier, then a mask of CTAs.
uint32_t SizeOf(const Warp& warp, const Instruction& instruction, int operand, int lane) {
  const auto bytes = static_cast<uint32_t>(Source(warp, instruction.operands[operand])[lane]);
  if (bytes == 0 || bytes % 16) {
    Fail(warp, instruction,
         "the size is " + std::to_string(bytes) + "; a multiple of 16 above 0 is needed");
  }
  return bytes;
}

// The global address of an operand. All of the bytes must exist.
uint64_t GlobalOf(const Warp& warp, const Instruction& instruction, int operand, int lane,
                  uint32_t bytes) {
  const uint64_t address = AddressOf(warp, instruction.operands[operand], lane);
  if (address % 16) Fail(warp, instruction, "the global address is not a multiple of 16");
  FindGlobal(warp, address, bytes, instruction);
  return address;
}

Outcome Load(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    const auto& operands = instruction.operands;
    const uint32_t bytes = SizeOf(warp, instruction, 2, lane);
    const BulkShape shape = BulkShape::Range(GlobalOf(warp, instruction, 1, lane, bytes), bytes);
    const uint32_t ctas =
        instruction.flags & kMulticast ? Source(warp, operands[4])[lane] & 0xffff : 0;
    IssueLoad(warp, instruction, lane, shape, AddressOf(warp, operands[0], lane),
              AddressOf(warp, operands[3], lane), ctas);
  });
  return Outcome::kNext;
}

Outcome CopyToCta(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Reduction reduction{instruction.variant, instruction.type};
  ForLanes(mask, [&](int lane) {
    const auto& operands = instruction.operands;
    const BulkShape shape = BulkShape::Range(0, SizeOf(warp, instruction, 2, lane));
    IssueClusterCopy(warp, instruction, lane, shape, AddressOf(warp, operands[1], lane),
                     AddressOf(warp, operands[0], lane), AddressOf(warp, operands[3], lane),
                     reduction);
  });
  return Outcome::kNext;
}

void StoreLanes(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const int lane = FirstLane(lanes);
  const uint32_t bytes = SizeOf(warp, instruction, 2, lane);
  const BulkShape shape = BulkShape::Range(GlobalOf(warp, instruction, 0, lane, bytes), bytes);
  IssueStore(warp, instruction, lanes, shape, AddressOf(warp, instruction.operands[1], lane),
             {instruction.variant, instruction.type});
}

Outcome Store(Warp& warp, const Instruction& instruction, uint32_t mask) {
  if (instruction.variant >= 0) {
    ForLanes(mask, [&](int lane) { StoreLanes(warp, instruction, 1u << lane); });
    return Outcome::kNext;
  }
  const auto values = [&](int lane) -> OperandValues {
    const auto& operands = instruction.operands;
    return {AddressOf(warp, operands[0], lane), AddressOf(warp, operands[1], lane),
            static_cast<uint32_t>(Source(warp, operands[2])[lane])};
  };
  for (const auto& [equal, lanes] : DistinctOperands(mask, values)) {
    StoreLanes(warp, instruction, lanes);
  }
  return Outcome::kNext;
}

// The bytes must exist, as for a load.
Outcome Prefetch(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    GlobalOf(warp, instruction, 0, lane, SizeOf(warp, instruction, 1, lane));
  });
  return Outcome::kNext;
}

enum Direction { kLoad, kToCta, kStore, kUnknown };

// Takes the state spaces: the destination comes first.
Direction TakeDirection(Instruction& instruction, Modifiers& modifiers) {
  std::vector<std::string_view> spaces;
  for (const std::string& part : instruction.opcode) {
    if (part != "global" && part != "shared::cta" && part != "shared::cluster") continue;
    spaces.push_back(part);
    modifiers.Take(part);
  }
  if (spaces.size() != 2) return kUnknown;
  if (spaces[1] == "global" && spaces[0] != "global") {
    if (spaces[0] == "shared::cta") instruction.flags |= kOwnCta;
    return kLoad;
  }
  if (spaces[1] != "shared::cta") return kUnknown;
  return spaces[0] == "global" ? kStore : spaces[0] == "shared::cluster" ? kToCta : kUnknown;
}

// Takes .add.noftz.bf16 and the like. Returns false for a form that the hardware does not have.
bool TakeReductionAndType(Instruction& instruction, Modifiers& modifiers, Direction direction) {
  Reduction reduction = TakeReduction(modifiers);
  reduction.type = modifiers.TakeType();
  const bool half = reduction.type == Type::kF16 || reduction.type == Type::kBF16;
  // Only .add has a form with .noftz, and no other one for these types.
  if (modifiers.Take("noftz") != (half && reduction.operation == 0)) return false;
  instruction.variant = reduction.operation;
  instruction.type = reduction.type;
  return reduction.active() && direction != kLoad && IsReduction(reduction, direction == kStore);
}

bool IsAddresses(const Instruction& instruction, std::initializer_list<size_t> indices) {
  for (const size_t index : indices) {
    const auto& operands = instruction.operands;
    if (index >= operands.size() || operands[index].kind != Operand::kAddress) return false;
  }
  return true;
}

}  // namespace

void TakeCachePolicy(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("L2::cache_hint") && !instruction.operands.empty()) {
    instruction.operands.pop_back();
  }
}

Execute DecodeBulkCopy(Instruction& instruction, Modifiers& modifiers, bool reduces) {
  const Direction direction = TakeDirection(instruction, modifiers);
  if (direction == kUnknown) return nullptr;
  const bool group = modifiers.Take("bulk_group"),
             mbarrier = modifiers.Take("mbarrier::complete_tx::bytes");
  if (group == mbarrier || group != (direction == kStore)) return nullptr;
  instruction.variant = -1;
  if (reduces && !TakeReductionAndType(instruction, modifiers, direction)) return nullptr;
  if (direction != kToCta) TakeCachePolicy(instruction, modifiers);
  if (direction == kLoad && !(instruction.flags & kOwnCta) &&
      modifiers.Take("multicast::cluster")) {
    instruction.flags |= kMulticast;
  }
  const size_t count = direction == kStore ? 3 : instruction.flags & kMulticast ? 5 : 4;
  if (instruction.operands.size() != count || !IsAddresses(instruction, {0, 1})) return nullptr;
  if (direction == kStore) return Store;
  if (!IsAddresses(instruction, {3})) return nullptr;
  return direction == kLoad ? Load : CopyToCta;
}

Execute DecodeBulkPrefetch(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("L2") || !modifiers.Take("global")) return nullptr;
  TakeCachePolicy(instruction, modifiers);
  return instruction.operands.size() == 2 && IsAddresses(instruction, {0}) ? Prefetch : nullptr;
}

}  // namespace ptx
