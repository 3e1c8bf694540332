// Bulk copies (TMA): what the files of the family share.
//
// SASS of ptxas 13.0 shows how the lanes of a warp issue one. Stores to global memory and
// prefetches with equal operands are a single operation (UTMASTG, UBLKCP.G.S). Loads, copies to
// other CTAs and reductions run in a loop, once for each lane, even if their operands are equal:
// each completes its bytes, or adds its values.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/ptx/bulk/tensor_map.h"
#include "tests/model/ptx/program/decode.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {

// Instruction::flags of the family.
constexpr uint32_t kMulticast = 1;  // .multicast::cluster
constexpr uint32_t kOwnCta = 2;     // the destination is .shared::cta
constexpr uint32_t kReadOnly = 4;   // wait_group.read

// ---- Shapes (bulk_shape.cc)

// The part of a bulk copy that moves at once: a line of a box, or some bytes of a plain copy.
struct BulkPiece {
  uint32_t offset = 0;  // in the data in shared memory, before a swizzle
  uint32_t bytes = 0;   // in shared memory
  // The bytes in bounds are [first, first + count) of the piece. The first of them lies at this
  // global address.
  uint32_t first = 0, count = 0;
  uint64_t global = 0;
};
constexpr uint32_t kMaxPieceBytes = 2048;  // 256 elements of 8 bytes

// The data that a bulk copy moves.
class BulkShape {
 public:
  // Consecutive bytes, at this address in global memory.
  static BulkShape Range(uint64_t global, uint32_t bytes);
  // The box of a tensor at these coordinates.
  static BulkShape Box(const TensorMap& map, const std::array<int32_t, 5>& coordinates);

  uint32_t pieces() const { return pieces_; }
  uint32_t bytes() const { return bytes_; }  // in shared memory
  BulkPiece Piece(uint32_t index) const;
  bool is_box() const { return map_.rank > 0; }
  int swizzle() const { return map_.swizzle; }
  // Writes the values of elements that are out of bounds.
  void Fill(std::byte* to, uint32_t bytes) const;

 private:
  TensorMap map_;  // of a box; else its rank is 0
  std::array<int32_t, 5> coordinates_ = {};
  uint64_t global_ = 0;
  uint32_t bytes_ = 0, pieces_ = 0, line_bytes_ = 0;
};

// ---- Reductions (bulk_reduce.cc)

// .add, .min, .max, .inc, .dec, .and, .or, .xor; `operation` is -1 for a copy.
struct Reduction {
  int operation = -1;
  Type type = Type::kNone;
  bool active() const { return operation >= 0; }
};
// Takes the operation of a reduction; Reduction::operation is -1 if there is none.
Reduction TakeReduction(Modifiers& modifiers);
// True if the hardware has this reduction of global memory, or of another CTA's shared memory. The
// type of .and, .or and .xor is b32 or b64.
bool IsReduction(const Reduction& reduction, bool global);
// The reduction of elements of this CUtensorMapDataType; Reduction::type is kNone if the hardware
// has none.
Reduction TensorReduction(int operation, int tensor_type);
// Combines each element at `to` with the one at `from`.
void Reduce(const Reduction& reduction, std::byte* to, const std::byte* from, uint32_t bytes);

// ---- Operations (bulk_operation.cc)

// These start an operation: a copy, or a reduction if that is active. Addresses of shared memory
// are as in the operands. They throw Stop for what the hardware forbids.
//
// From global memory to the own CTA or another one or, with kMulticast, to those of the mask.
void IssueLoad(Warp& warp, const Instruction& instruction, int lane, const BulkShape& shape,
               uint64_t to, uint64_t mbarrier, uint32_t cta_mask);
// From the own CTA to global memory, for lanes with equal operands.
void IssueStore(Warp& warp, const Instruction& instruction, uint32_t lanes, const BulkShape& shape,
                uint64_t from, const Reduction& reduction);
// From the own CTA to another one of the cluster.
void IssueClusterCopy(Warp& warp, const Instruction& instruction, int lane, const BulkShape& shape,
                      uint64_t from, uint64_t to, uint64_t mbarrier, const Reduction& reduction);
// The operation is in `copy`, too, if it is in `group`.
void FollowGroup(AsyncOperation& operation, const AsyncGroup& group,
                 const std::shared_ptr<AsyncGroup>& copy);

// ---- Groups (bulk_groups.cc)

// The groups without a commit of these lanes, for an operation that they issue as one. No other
// lane is in them.
std::vector<std::shared_ptr<AsyncGroup>> OpenGroups(Warp& warp, uint32_t lanes);
Execute DecodeCommitGroup(Instruction& instruction);
Execute DecodeWaitGroup(Instruction& instruction, Modifiers& modifiers);

// ---- Instructions

// Takes .L2::cache_hint and its operand, the last one, which changes neither values nor order.
void TakeCachePolicy(Instruction& instruction, Modifiers& modifiers);

// A lane's values of operands. Lanes with equal ones issue a store together.
using OperandValues = std::array<uint64_t, 8>;
template <typename Function>
std::vector<std::pair<OperandValues, uint32_t>> DistinctOperands(uint32_t mask,
                                                                 Function values_of) {
  std::vector<std::pair<OperandValues, uint32_t>> distinct;
  ForLanes(mask, [&](int lane) {
    const OperandValues values = values_of(lane);
    for (auto& [known, lanes] : distinct) {
      if (known == values) {
        lanes |= 1u << lane;
        return;
      }
    }
    distinct.emplace_back(values, 1u << lane);
  });
  return distinct;
}

// bulk_copy.cc
Execute DecodeBulkCopy(Instruction& instruction, Modifiers& modifiers, bool reduces);
Execute DecodeBulkPrefetch(Instruction& instruction, Modifiers& modifiers);
// tensor_copy.cc
Execute DecodeTensorCopy(Instruction& instruction, Modifiers& modifiers, bool reduces);
Execute DecodeTensorPrefetch(Instruction& instruction, Modifiers& modifiers);
// tensormap_instructions.cc
Execute DecodeTensorMap(Instruction& instruction, Modifiers& modifiers);
// The tensor map that the first part of an address operand names in this lane, which reads it for
// `lanes`. Throws Stop if there is none.
TensorMap ReadTensorMap(Warp& warp, const Instruction& instruction, const Operand& address,
                        int lane, uint32_t lanes);

}  // namespace ptx
