// The daemon's log: stderr, one line a fact.
#pragma once

#include "absl/strings/string_view.h"

namespace agmm {

// `level`: debug, info, warn or error. May be called again.
void SetUpLog(absl::string_view level);

}  // namespace agmm
