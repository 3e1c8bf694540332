// The end of a lease on the contents of a tensor.
#pragma once

namespace agmm {

// kCommitted: a write has replaced the contents. kUntouched: the contents are as before the lease.
// kSpoiled: a write ended without a commit, so the tensor has no contents.
enum class LeaseEnd { kCommitted, kUntouched, kSpoiled };

}  // namespace agmm
