// The times of a launch's epochs, as a node reports them. Pure.
#pragma once

#include "agmm/v1/peer.pb.h"
#include "daemon/measure/survey.h"

namespace agmm::measure {

// Returns the mean time of an epoch on each rank of a node, without the first epoch, which waits
// for the other nodes to begin: from the end of that to the end of the last one. The times of
// single epochs would leave out what has arrived before its receiver began the epoch.
//
// Devices that share a core may get it in turns, each for several epochs. Each rank then seems to
// have the core for itself, so the time from the first rank's begin to the last rank's end counts
// for all of them. Ranks whose figures are not numbers are left out.
EpochTimes MeanEpochNs(const v1::LaunchDone& done);

}  // namespace agmm::measure
