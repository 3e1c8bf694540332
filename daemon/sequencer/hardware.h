// The hardware of some ranks, by which tuned plans are found.
#pragma once

#include <string>
#include <vector>

#include "daemon/sequencer/members.h"

namespace agmm {

// Returns the processors and devices of world ranks `ranks`, each kind once, without names of
// hosts; with the islands of the ranks, if some are not the first of their node. `world` has all
// ranks.
std::string HardwareOf(const std::vector<int>& ranks, const std::vector<WorldRank>& world);

}  // namespace agmm
