// What is behind a JobHandle.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/agmm.h"
#include "client/library/core.h"

namespace agmm {

struct JobHandleState {
  absl::Time WaitDeadline(Milliseconds timeout) const;

  std::shared_ptr<Core> core;
  absl::Duration job_timeout;
  std::string sequencer;  // that gave the id
};

}  // namespace agmm
