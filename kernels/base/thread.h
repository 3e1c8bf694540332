// Threads that may fail to start. All threads of the product are started here, because std::thread
// throws if the system cannot start one.
#pragma once

#include <functional>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm {

// Runs `run` on a new thread. `purpose` names it in the error: "the commands of the sequencer".
// Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<std::thread> StartThread(absl::string_view purpose, std::function<void()> run);

// Lets other threads go first where cores are short: the calling thread then gets about 3 % of a
// core that another one wants. Threads that it starts later inherit that. Never raises a priority,
// and has no effect where the system refuses it.
void LowerPriority();

}  // namespace agmm
