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

}  // namespace agmm
