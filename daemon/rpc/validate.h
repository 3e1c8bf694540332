// Checks of a request by itself: sizes, counts, names, numbers that multiply without overflow. The
// owner of an object checks if it exists, fits or is allowed.
#pragma once

#include "absl/status/status.h"

namespace agmm {

// Specialized for each request, and for each message of streams, in validate.cc; the order of a
// stream's messages is checked by the stream. Errors: INVALID_ARGUMENT, one line with the field,
// its value, the bound and what to do (three lines, with a caret, for the notation of a spec or
// sharding). FromProto converts requests that have passed.
template <typename Request>
absl::Status Validate(const Request& request);

}  // namespace agmm
