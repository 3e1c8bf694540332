// cp.async.bulk.tensor and cp.reduce.async.bulk.tensor of tiles, and cp.async.bulk.prefetch.tensor.
#include "tests/model/ptx/bulk/bulk.h"

namespace ptx {
namespace {

// `count` is the number of dimensions. Operand `box` is the address of a tensor map with
// coordinates.
struct Box {
  TensorMap map;
  std::array<int32_t, 5> coordinates = {};
};

int32_t Coordinate(const Warp& warp, const Operand& box, int dimension, int lane) {
  return static_cast<int32_t>(Source(warp, box.parts[1].parts[dimension])[lane]);
}

Box BoxOf(Warp& warp, const Instruction& instruction, int operand, uint32_t lanes) {
  const int lane = FirstLane(lanes);
  const Operand& box = instruction.operands[operand];
  Box found{.map = ReadTensorMap(warp, instruction, box, lane, lanes)};
  if (found.map.rank != instruction.count) {
    Fail(warp, instruction,
         "the tensor map has " + std::to_string(found.map.rank) + " dimensions, and there are " +
             std::to_string(instruction.count) + " coordinates");
  }
  for (int i = 0; i < instruction.count; ++i) found.coordinates[i] = Coordinate(warp, box, i, lane);
  return found;
}

Outcome Load(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    const auto& operands = instruction.operands;
    const Box box = BoxOf(warp, instruction, 1, 1u << lane);
    const uint32_t ctas =
        instruction.flags & kMulticast ? Source(warp, operands[3])[lane] & 0xffff : 0;
    IssueLoad(warp, instruction, lane, BulkShape::Box(box.map, box.coordinates),
              AddressOf(warp, operands[0], lane), AddressOf(warp, operands[2], lane), ctas);
  });
  return Outcome::kNext;
}

void StoreLanes(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const Box box = BoxOf(warp, instruction, 0, lanes);
  for (int i = 0; i < instruction.count; ++i) {
    // PTX ISA, restrictions of the direction from shared to global memory.
    if (box.coordinates[i] >= 0) continue;
    Fail(warp, instruction,
         "coordinate " + std::to_string(i) + " is " + std::to_string(box.coordinates[i]) +
             "; those of a store are not negative");
  }
  Reduction reduction{.operation = instruction.variant};
  if (reduction.active()) {
    reduction = TensorReduction(instruction.variant, box.map.type);
    if (reduction.type == Type::kNone) {
      Fail(warp, instruction,
           "elements of the tensor map's data type " + std::to_string(box.map.type) +
               " have no such reduction");
    }
  }
  IssueStore(warp, instruction, lanes, BulkShape::Box(box.map, box.coordinates),
             AddressOf(warp, instruction.operands[1], FirstLane(lanes)), reduction);
}

Outcome Store(Warp& warp, const Instruction& instruction, uint32_t mask) {
  if (instruction.variant >= 0) {
    ForLanes(mask, [&](int lane) { StoreLanes(warp, instruction, 1u << lane); });
    return Outcome::kNext;
  }
  const auto values = [&](int lane) {
    OperandValues of_lane{AddressOf(warp, instruction.operands[0], lane),
                          AddressOf(warp, instruction.operands[1], lane)};
    for (int i = 0; i < instruction.count; ++i) {
      of_lane[2 + i] = static_cast<uint32_t>(Coordinate(warp, instruction.operands[0], i, lane));
    }
    return of_lane;
  };
  for (const auto& [equal, lanes] : DistinctOperands(mask, values)) {
    StoreLanes(warp, instruction, lanes);
  }
  return Outcome::kNext;
}

Outcome Prefetch(Warp& warp, const Instruction& instruction, uint32_t mask) {
  ForLanes(mask, [&](int lane) { BoxOf(warp, instruction, 0, 1u << lane); });
  return Outcome::kNext;
}

// Takes .2d and .tile. Returns false if operand `box` is not the address of a map with as many
// coordinates.
bool TakeBox(Instruction& instruction, Modifiers& modifiers, size_t box) {
  instruction.count = modifiers.TakeOneOf({"1d", "2d", "3d", "4d", "5d"}) + 1;
  modifiers.Take("tile");
  if (instruction.count == 0 || box >= instruction.operands.size()) return false;
  const Operand& operand = instruction.operands[box];
  if (operand.kind != Operand::kAddress || operand.parts.size() != 2) return false;
  const Operand& coordinates = operand.parts[1];
  if (coordinates.kind != Operand::kVector) return false;
  for (const Operand& coordinate : coordinates.parts) {
    if (coordinate.kind != Operand::kRegister && coordinate.kind != Operand::kConstant) {
      return false;
    }
  }
  return coordinates.parts.size() == static_cast<size_t>(instruction.count);
}

Execute DecodeLoad(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("shared::cta")) {
    instruction.flags |= kOwnCta;
  } else if (!modifiers.Take("shared::cluster")) {
    return nullptr;
  }
  if (!modifiers.Take("global") || !TakeBox(instruction, modifiers, 1)) return nullptr;
  TakeCachePolicy(instruction, modifiers);
  if (!(instruction.flags & kOwnCta) && modifiers.Take("multicast::cluster")) {
    instruction.flags |= kMulticast;
  }
  const auto& operands = instruction.operands;
  if (operands.size() != (instruction.flags & kMulticast ? 4 : 3)) return nullptr;
  return operands[0].kind == Operand::kAddress && operands[2].kind == Operand::kAddress ? Load
                                                                                        : nullptr;
}

}  // namespace

Execute DecodeTensorCopy(Instruction& instruction, Modifiers& modifiers, bool reduces) {
  if (modifiers.Take("mbarrier::complete_tx::bytes")) {
    return reduces ? nullptr : DecodeLoad(instruction, modifiers);
  }
  if (!modifiers.Take("bulk_group") || !modifiers.Take("global") ||
      !modifiers.Take("shared::cta")) {
    return nullptr;
  }
  instruction.variant = reduces ? TakeReduction(modifiers).operation : -1;
  if (reduces && instruction.variant < 0) return nullptr;
  if (!TakeBox(instruction, modifiers, 0)) return nullptr;
  TakeCachePolicy(instruction, modifiers);
  return instruction.operands.size() == 2 && instruction.operands[1].kind == Operand::kAddress
             ? Store
             : nullptr;
}

Execute DecodeTensorPrefetch(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("L2") || !modifiers.Take("global") || !TakeBox(instruction, modifiers, 0)) {
    return nullptr;
  }
  TakeCachePolicy(instruction, modifiers);
  return instruction.operands.size() == 1 ? Prefetch : nullptr;
}

}  // namespace ptx
