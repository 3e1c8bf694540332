// mbarrier objects, as barriers, bulk copies and cp.async use them.
#pragma once

#include "tests/model/ptx/state/state.h"

namespace ptx {

// Adds `expect` bytes to the tx-count and takes `arrivals` off the pending count of the mbarrier at
// this offset. The phase ends when both are zero. `known`, if not null, reaches the waiters of
// the phase. Throws Stop if there is no mbarrier, or if a count leaves its range.
void UpdateMbarrier(World& world, Cta& cta, uint32_t offset, int64_t expect, int64_t arrivals,
                    const Knowledge* known, const std::string& by);
// A finding if the init of the mbarrier is not known to the lane that uses it.
void CheckInit(Warp& warp, int lane, Cta& cta, uint32_t offset, const Instruction& instruction);

}  // namespace ptx
