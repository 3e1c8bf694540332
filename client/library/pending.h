// Waits and watches in the background: no thread each, one callback at the end. Each keeps itself
// and its core alive until that has run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "client/agmm.h"
#include "client/library/core.h"

namespace agmm {

using OnOutcome = std::function<void(const Result<JobInfo>&)>;

// Of a core that has begun a use for it, which ends when the callback has run.
void StartWait(std::shared_ptr<Core> core, const Id& job, absl::Time deadline, OnOutcome callback);
void StartWatch(std::shared_ptr<Core> core, const Id& job, int64_t after_event, absl::Time deadline,
                std::function<bool(const JobEvent&)> on_event, OnOutcome on_end);

}  // namespace agmm
