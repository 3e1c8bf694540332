// wgmma, as the engine uses it.
#pragma once

#include "tests/model/ptx/state/state.h"

namespace ptx {

// Adds a finding if the instruction uses a register of a wgmma in flight.
void CheckRegistersInFlight(Warp& warp, const Instruction& instruction);

// Notes that the warp has run an instruction other than wgmma.mma_async, for the rules of wgmma's
// registers.
inline void NoteRegisterUse(Warp& warp, const Instruction& instruction) {
  if (warp.register_fence.empty()) return;
  for (const uint32_t index : instruction.registers) {
    warp.register_fence[index] = warp.wgmma_fence;
  }
  if (!warp.landing.empty()) CheckRegistersInFlight(warp, instruction);
}

// Carries out the next wgmma of the warp's warpgroup if all four warps have issued it. Returns true
// if it did. Throws Stop if the four warps have issued different ones.
bool AdvanceWgmma(Warp& warp);

// Returns true if the warp has issued a wgmma that no wgmma.wait_group has waited for. A warp that
// ends like this is an error.
bool WgmmaPending(const Warp& warp);

}  // namespace ptx
