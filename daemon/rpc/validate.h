// Checks of a request by itself: sizes, counts, names, numbers that multiply without overflow. The
// owner of an object checks if it exists, fits or is allowed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace agmm {

// More than any world holds, and small enough that sums of a thousand sizes do not overflow.
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 50;
inline constexpr int64_t kMaxTimeoutSeconds = 24 * 60 * 60;

// Specialized for each request, and for each message of streams, in validate.cc; the order of a
// stream's messages is checked by the stream. Errors: INVALID_ARGUMENT, one line with the field,
// its value, the bound and what to do (three lines, with a caret, for the notation of a spec or
// sharding). FromProto converts requests that have passed.
template <typename Request>
absl::Status Validate(const Request& request);

}  // namespace agmm
