// The text by which people recognize a client in a list of sessions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace agmm {

// Errors: INVALID_ARGUMENT for a name of more than 64 bytes, with control characters or not of
// UTF-8.
absl::Status CheckProgramName(absl::string_view name);

// Returns `name` with this process's id and host: "train (pid 4711 on host1)". A daemon takes the
// text, because what does not suit is cut off or replaced by '?'. Empty: the name of this process's
// executable.
std::string ProgramText(absl::string_view name = "");

}  // namespace agmm
