// The rules of the registers that wgmma.mma_async uses: its accumulators, and its fragments of A.
#pragma once

#include "tests/model/ptx/state/state.h"

namespace ptx {

// Allocates what the rules need, if the warp has not run wgmma before.
void PrepareRegisters(Warp& warp);
// Adds at most one finding for the registers of a wgmma that the warp issues.
void CheckRegisters(Warp& warp, const Instruction& instruction);
// Puts the registers of the wgmma with the clock wgmma_clock in flight.
void TakeRegisters(Warp& warp, const Instruction& instruction);
// Lands the registers of all wgmma up to the clock.
void ReleaseRegisters(Warp& warp, Clock clock);

}  // namespace ptx
