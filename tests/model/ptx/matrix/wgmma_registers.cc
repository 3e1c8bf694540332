#include "tests/model/ptx/matrix/wgmma_registers.h"

#include "tests/model/ptx/matrix/fragments.h"
#include "tests/model/ptx/matrix/wgmma.h"
#include "tests/model/ptx/matrix/wgmma_form.h"

namespace ptx {
namespace {

// Calls function(register, true if it is an accumulator) for the registers of D and A.
template <typename Function>
void ForRegisters(const Instruction& instruction, Function function) {
  for (const Operand& part : instruction.operands[0].parts) function(part.index, true);
  if (!(instruction.flags & kRegistersA)) return;
  for (const Operand& part : instruction.operands[1].parts) function(part.index, false);
}

// Two wgmma may use a register without a fence between them if both only read it, or if both
// accumulate in it with the same shape.
bool MayFollow(const WgmmaUse& earlier, const Instruction& instruction, bool accumulator) {
  if (earlier.instruction == nullptr) return true;
  if (earlier.accumulator != accumulator) return false;
  const Instruction& other = *earlier.instruction;
  return !accumulator || (other.count == instruction.count && other.type == instruction.type &&
                          DepthOf(other.from) == DepthOf(instruction.from));
}

}  // namespace

void PrepareRegisters(Warp& warp) {
  if (!warp.register_wgmma.empty()) return;
  // All count as used before the first fence.
  warp.register_fence.assign(warp.registers.size(), 1);
  warp.register_in_flight.assign(warp.registers.size(), 0);
  warp.register_wgmma.assign(warp.registers.size(), {});
}

void CheckRegisters(Warp& warp, const Instruction& instruction) {
  Races& races = warp.cta->grid->world->races;
  if (!races.enabled) return;
  const Access access = AccessOf(warp, instruction, kAllLanes, true);
  if (warp.wgmma_fence == 1) {
    races.Add("the first wgmma.mma_async of a warp, without wgmma.fence", access, nullptr,
              "wgmma.fence before it orders its registers after their earlier uses");
    return;
  }
  bool found = false;
  ForRegisters(instruction, [&](uint32_t index, bool accumulator) {
    if (found) return;
    const WgmmaUse& use = warp.register_wgmma[index];
    const bool follows = MayFollow(use, instruction, accumulator);
    Access earlier = access;
    earlier.where = use.instruction;
    if (warp.register_in_flight[index] && !follows) {
      found = true;
      races.Add(
          "wgmma.mma_async uses a register of another one in flight, of another shape or as "
          "another matrix",
          access, &earlier, "wgmma.wait_group between them would order them");
    } else if (use.fence == warp.wgmma_fence && !follows) {
      found = true;
      races.Add(
          "wgmma.mma_async uses a register of an earlier one, of another shape or as another "
          "matrix, without wgmma.fence",
          access, &earlier, "wgmma.fence between them would order them");
    } else if (warp.register_fence[index] == warp.wgmma_fence) {
      found = true;
      races.Add(
          "wgmma.mma_async uses a register that another instruction has used since the last "
          "wgmma.fence",
          access, nullptr, "wgmma.fence after that use would order them");
    }
  });
}

void TakeRegisters(Warp& warp, const Instruction& instruction) {
  ForRegisters(instruction, [&](uint32_t index, bool accumulator) {
    ++warp.register_in_flight[index];
    warp.register_wgmma[index] = {&instruction, warp.wgmma_fence, accumulator};
  });
  warp.landing.push_back({&instruction, warp.wgmma_clock});
}

void ReleaseRegisters(Warp& warp, Clock clock) {
  while (!warp.landing.empty() && warp.landing.front().second <= clock) {
    ForRegisters(*warp.landing.front().first,
                 [&](uint32_t index, bool) { --warp.register_in_flight[index]; });
    warp.landing.pop_front();
  }
}

void CheckRegistersInFlight(Warp& warp, const Instruction& instruction) {
  Races& races = warp.cta->grid->world->races;
  if (!races.enabled) return;
  for (const uint32_t index : instruction.registers) {
    if (warp.register_in_flight[index] == 0) continue;
    const Access access = AccessOf(warp, instruction, kAllLanes, true);
    Access earlier = access;
    earlier.where = warp.register_wgmma[index].instruction;
    races.Add("uses a register of a wgmma.mma_async in flight", access, &earlier,
              "wgmma.wait_group between them would order them");
    return;
  }
}

}  // namespace ptx
