// The uploads that come through this daemon, by the ids that their clients gave them. An upload
// outlives the connection of its client: bytes in flight still arrive, and another connection
// continues after them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/link/owner_quota.h"
#include "daemon/node/leases.h"

namespace agmm {

struct UploadLimits {
  // An upload whose client is silent for this long loses its lease, so that its space is freed. A
  // client whose connection is cut must have time to notice this (kNoticeBound of client/connect)
  // and to search for its daemon (kRetryBound).
  absl::Duration silence = absl::Seconds(30);
  // `kept`: the time during which a commit may be repeated, an aborted id may not be used, and the
  // reason of a failure is known. `max_kept`: bound on the commits, and on the other ends, that are
  // remembered.
  absl::Duration kept = absl::Seconds(60);
  size_t max_kept = 1 << 16;
  int max_open = 1024;  // a quarter of them for each owner
};

class UploadRecord;

// Thread-safe.
class Uploads {
 public:
  explicit Uploads(const TransferParts& parts, UploadLimits limits = {});
  // Calls Stop.
  ~Uploads();

  // Ends all uploads, returns their leases and waits for that, because the sequencer always
  // answers. No upload begins afterwards. May be called again.
  void Stop();

  // Hands `message`, which is valid, to the upload that it names. A message without a chunk, or
  // with the first one, opens an unknown upload. Errors, besides those of UploadRecord::Take:
  // ALREADY_EXISTS for an id that began with another request; ABORTED for an aborted upload; the
  // reason of the failure for a later chunk of a failed upload; NOT_FOUND; RESOURCE_EXHAUSTED, also
  // from TakeMemory, which leaves the upload as it was; UNAVAILABLE while the daemon stops.
  void Write(const CallContext& call, std::shared_ptr<v1::UploadRequest> message,
             Reply<v1::UploadResponse> answer);
  // An abort may overtake the upload's first message, which is then refused.
  void Abort(const v1::AbortUploadRequest& request, Reply<v1::AbortUploadResponse> reply);
  // Ends the session's uploads.
  void EndSession(const std::string& session_id);

 private:
  using RecordPtr = std::shared_ptr<UploadRecord>;
  struct End {
    absl::Status why;
    bool by_client;
    int64_t at_ns;
  };

  // Returns the upload that `message` names. Errors: those of Write.
  absl::StatusOr<RecordPtr> FindOrMake(const CallContext& call, const v1::UploadRequest& message,
                                       bool* made);
  // Called last by an upload.
  void Close(const std::string& id, const std::string& principal, const absl::Status& failure);
  std::vector<RecordPtr> All();

  // This, and all below, require the lock. Returns null if the upload is unknown.
  RecordPtr Find(const std::string& id);
  void Remember(const std::string& id, absl::Status why, bool by_client);
  void Forget();
  size_t open() const { return uploads_.size() - kept_.size(); }

  const TransferParts parts_;
  const UploadLimits limits_;
  OwnerQuota quota_;
  std::mutex mutex_;                // of all below
  std::condition_variable closed_;  // notified for each upload that closes
  std::map<std::string, RecordPtr> uploads_;
  // The times and ids of committed uploads, oldest first.
  std::deque<std::pair<int64_t, std::string>> kept_;
  // The reasons why uploads ended without a commit, which may be known before the first message of
  // an aborted upload arrives; and the times and ids of these ends, oldest first.
  std::map<std::string, End> ended_;
  std::deque<std::pair<int64_t, std::string>> ends_;
  bool stopping_ = false;
};

}  // namespace agmm
