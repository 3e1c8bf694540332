// Barriers of CTAs and clusters, as the engine uses them when a warp ends; releases and acquires by
// address.
#pragma once

#include "tests/model/ptx/state/state.h"

namespace ptx {

// Lets the barriers pass at which all threads have arrived. Warps that have ended are not waited
// for.
void PassCtaBarriers(Cta& cta);
void PassClusterBarrier(Cluster& cluster);

// A release of the lane at an address (of the host): later acquires of it know what the lane knows.
// The releases of others at the address stay: a read-modify-write continues their release
// sequences.
void ReleaseAt(Warp& warp, int lane, uint64_t address, Scope scope);
void AcquireAt(Warp& warp, int lane, uint64_t address, Scope scope);
// A relaxed write or read at an address: it takes part in what fences before or after it order.
void RelaxedWriteAt(Warp& warp, int lane, uint64_t address, Scope scope);
void RelaxedReadAt(Warp& warp, int lane, uint64_t address, Scope scope);
// An ordinary store: ends the release sequences of other agents at the address.
void OverwriteAt(Warp& warp, uint64_t address);

}  // namespace ptx
