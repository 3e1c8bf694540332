#include "daemon/sequencer/request_log.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/str_format.h"

namespace agmm {

RequestLog::Key RequestLog::KeyOf(absl::string_view request_id) {
  return {absl::HashOf(1, request_id), absl::HashOf(request_id, 2)};
}

bool RequestLog::Same(const Entry& entry, absl::string_view body) {
  return entry.body == absl::HashOf(body);
}

const RequestLog::Entry* RequestLog::Find(absl::string_view request_id) {
  Forget();
  const auto it = entries_.find(KeyOf(request_id));
  return it == entries_.end() ? nullptr : &it->second;
}

absl::Status RequestLog::CheckRoom() {
  Forget();
  if (entries_.size() < max_entries_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%d request ids are remembered, the maximum; submit without a request id, or wait up to %s",
      entries_.size(), absl::FormatDuration(kRequestMemory)));
}

void RequestLog::Add(absl::string_view request_id, absl::string_view body, uint64_t job_id,
                     absl::Duration timeout) {
  Entry entry;
  entry.body = absl::HashOf(body);
  entry.job_id = job_id;
  entry.timeout = timeout;
  entry.end = absl::InfiniteFuture();
  entries_[KeyOf(request_id)] = entry;
}

void RequestLog::End(absl::string_view request_id, v1::Job::State state, absl::StatusCode code) {
  const Key key = KeyOf(request_id);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  entry.state = state;
  entry.code = code;
  entry.end = clock_->Now();
  expiries_.emplace(Deadline::After(std::max(kRequestMemory, entry.timeout), clock_->Nanos()), key);
}

void RequestLog::Drop(absl::string_view request_id) { entries_.erase(KeyOf(request_id)); }

void RequestLog::Forget() {
  const int64_t now_ns = clock_->Nanos();
  while (!expiries_.empty() && expiries_.top().first.HasPassed(now_ns)) {
    entries_.erase(expiries_.top().second);
    expiries_.pop();
  }
}

}  // namespace agmm
