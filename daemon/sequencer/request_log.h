// The request ids that have been used, their jobs, and the jobs' final states. Outlives the jobs'
// records. Touched on the loop only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"

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
  const Entry* Find(absl::string_view request_id) {
    Forget();
    const auto it = entries_.find(KeyOf(request_id));
    return it == entries_.end() ? nullptr : &it->second;
  }
  // Returns true if `entry` was made for this body.
  static bool Same(const Entry& entry, absl::string_view body) {
    return entry.body == absl::HashOf(body);
  }
  // Errors: RESOURCE_EXHAUSTED when it is full.
  absl::Status CheckRoom() {
    Forget();
    if (entries_.size() < max_entries_) return absl::OkStatus();
    return WithReason(absl::ResourceExhaustedError(
                          absl::StrFormat("%d request ids are remembered, the maximum; "
                                          "submit without a request id, or wait up to "
                                          "%s",
                                          entries_.size(), absl::FormatDuration(kRequestMemory))),
                      kReasonQuotaFull);
  }
  void Add(absl::string_view request_id, absl::string_view body, uint64_t job_id,
           absl::Duration timeout) {
    Entry entry;
    entry.body = absl::HashOf(body);
    entry.job_id = job_id;
    entry.timeout = timeout;
    entry.end = absl::InfiniteFuture();
    entries_[KeyOf(request_id)] = entry;
  }
  void End(absl::string_view request_id, v1::Job::State state, absl::StatusCode code) {
    const Key key = KeyOf(request_id);
    const auto it = entries_.find(key);
    if (it == entries_.end()) return;
    Entry& entry = it->second;
    entry.state = state;
    entry.code = code;
    entry.end = clock_->Now();
    expiries_.emplace(Deadline::After(std::max(kRequestMemory, entry.timeout), clock_->Nanos()),
                      key);
  }
  // Forgets a request whose job could not be admitted.
  void Drop(absl::string_view request_id) { entries_.erase(KeyOf(request_id)); }
  size_t size() const { return entries_.size(); }

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // two hashes of the id
  using Expiry = std::pair<Deadline, Key>;
  static Key KeyOf(absl::string_view request_id) {
    return {absl::HashOf(1, request_id), absl::HashOf(request_id, 2)};
  }
  void Forget() {
    const int64_t now_ns = clock_->Nanos();
    while (!expiries_.empty() && expiries_.top().first.HasPassed(now_ns)) {
      entries_.erase(expiries_.top().second);
      expiries_.pop();
    }
  }

  const Clock* const clock_;
  const size_t max_entries_;
  absl::flat_hash_map<Key, Entry> entries_;
  std::priority_queue<Expiry, std::vector<Expiry>, std::greater<>> expiries_;  // of ended jobs
};

}  // namespace agmm
