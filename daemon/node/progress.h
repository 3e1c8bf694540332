// The progress of a rank of this node in a launch, with the steps that it waits for by name.
#pragma once

#include <cstdint>

#include "agmm/v1/job.pb.h"
#include "daemon/node/local_plan.h"
#include "kernels/device/rank_state.h"

namespace agmm {

// `first_epoch` is the launch's; epochs of other launches do not count. Reads only state that is
// constant after LocalPlan::Prepare.
v1::RankProgress ProgressOf(const LocalPlan& plan, Rank rank, const RankState& state,
                            uint64_t first_epoch, int epochs, int epochs_done);

}  // namespace agmm
