// The request ids that have been used, their jobs, and the jobs' final states. Outlives the jobs'
// records. Touched on the loop only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"

namespace agmm {

// Time for which an id is remembered after its job's end, or the job's timeout if that is longer,
// so that a request repeated within its own timeout never runs twice.
inline constexpr absl::Duration kRequestMemory = absl::Minutes(10);
inline constexpr size_t kMaxRequests = 8 << 20;

class RequestLog {
 public:
  struct Entry {
    uint64_t body = 0;  // a hash
    uint64_t job_id = 0;
    absl::Time end;  // InfiniteFuture: not ended
    absl::Duration timeout;
    v1::Job::State state = v1::Job::STATE_QUEUED;  // once ended
    absl::StatusCode code = absl::StatusCode::kOk;
  };

  explicit RequestLog(const Clock* clock, size_t max_entries = kMaxRequests)
      : clock_(clock), max_entries_(max_entries) {}

  // Returns null if the id was never used, or is forgotten. Valid until the next call.
  const Entry* Find(absl::string_view request_id);
  // Returns true if `entry` was made for this body.
  static bool Same(const Entry& entry, absl::string_view body);
  // Errors: RESOURCE_EXHAUSTED when it is full.
  absl::Status CheckRoom();
  void Add(absl::string_view request_id, absl::string_view body, uint64_t job_id,
           absl::Duration timeout);
  void End(absl::string_view request_id, v1::Job::State state, absl::StatusCode code);
  // Forgets a request whose job could not be admitted.
  void Drop(absl::string_view request_id);
  size_t size() const { return entries_.size(); }

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // two hashes of the id
  using Expiry = std::pair<Deadline, Key>;
  static Key KeyOf(absl::string_view request_id);
  void Forget();

  const Clock* const clock_;
  const size_t max_entries_;
  absl::flat_hash_map<Key, Entry> entries_;
  std::priority_queue<Expiry, std::vector<Expiry>, std::greater<>> expiries_;  // of ended jobs
};

}  // namespace agmm
