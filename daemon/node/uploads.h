// The uploads that come through this daemon, by the ids that their clients gave them. An upload
// outlives the connection of its client: bytes in flight still arrive, and another connection
// continues after them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
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
#include "kernels/base/checksum.h"
#include "kernels/base/deferred.h"
#include "kernels/base/dtype.h"

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

// One upload: its lease and its progress. Thread-safe; answers run without its lock, on any thread.
// Uploads makes and finds it.
class UploadRecord : public std::enable_shared_from_this<UploadRecord> {
 public:
  using Answer = Reply<v1::UploadResponse>;

  // `closed` runs with OK when the upload has been committed, or with the reason when it has
  // failed, before any answer reports this.
  UploadRecord(const TransferParts& parts, const v1::BeginUpload& begin,
               absl::Duration silence_limit,
               std::function<void(const absl::Status& failure)> closed);

  // Requests the lease, on behalf of `call`. To be called once.
  void Open(const CallContext& call);
  // Takes a message, whose `begin` is this upload's. Answers once its chunk is in place, or, with a
  // commit, once the new contents count; without either, once all received bytes are in place.
  // Chunks that arrive early wait for the missing ones, and one chunk waits for the lease, as long
  // as their clients wait; bytes that were already received are skipped. INVALID_ARGUMENT leaves
  // the upload as it was; all other errors end it.
  void Take(const CallContext& call, std::shared_ptr<v1::UploadRequest> message, Answer answer);
  // Ends the upload with `why` if it is not being committed; calls `done` once its lease has been
  // returned.
  void Abort(absl::Status why, std::function<void()> done);
  // Ends the upload if it, or its tensor, belongs to the session.
  void EndSession(const std::string& session_id);

  // The first request, serialized. Another request under the same id is refused.
  std::string begin() const { return begin_.SerializeAsString(); }

 private:
  // kOpening: waits for the lease. kOpen: takes chunks. kComplete: all bytes were received, and are
  // committed once they are in place. kClosing: the lease is being returned.
  enum class Phase { kOpening, kOpen, kComplete, kClosing, kCommitted, kAborted };
  struct Waiter {
    Answer answer;
    std::shared_ptr<CancelToken> cancel;  // cancelled once its client has left
    std::shared_ptr<v1::UploadRequest> message;
  };

  void OnOpened(absl::StatusOr<v1::BeginLeaseResponse> response);
  void OnPlaced(Waiter waiter, absl::Status status);
  // Drops the early chunks of clients that have left, because they would send them again.
  void DropAbandoned();
  void OnClosed(bool commit, absl::StatusOr<v1::EndLeaseResponse> response);
  void Watch(absl::Duration delay);
  void OnWatch();

  // This, and all below, require the lock. The first error ends the upload.
  void Fail(absl::Status why);
  // Fails the upload if its generation has ended.
  void CheckGeneration();
  // Takes all steps that have become possible.
  void Drive(Deferred* after);
  // Takes the chunks that come next.
  void TakeChunks(Deferred* after);
  void Commit(Waiter waiter, Deferred* after);
  absl::Status CheckChunk(const v1::UploadChunk& chunk) const;
  absl::Status CheckCommit(const v1::CommitUpload& commit) const;
  bool ClientWaits() const;
  static void Tell(const Waiter& waiter, absl::StatusOr<v1::UploadResponse> result,
                   Deferred* after);
  // Answers `waiters_` and, once the upload has ended, early chunks.
  void AnswerAll(Deferred* after);
  absl::StatusOr<v1::UploadResponse> Result() const;

  const TransferParts parts_;
  const v1::BeginUpload begin_;
  const absl::Duration silence_limit_;
  const std::function<void(const absl::Status&)> closed_;
  const uint64_t local_generation_;
  CallContext call_;  // the call of the client that began it
  // Ends the wait for the lease, with the upload and not with its client.
  const std::shared_ptr<CancelToken> opening_ = std::make_shared<CancelToken>();

  std::mutex mutex_;  // of all below
  Phase phase_ = Phase::kOpening;
  absl::Status failure_;
  uint64_t lease_id_ = 0;
  v1::Tensor tensor_;  // constant from kOpen to kClosing; with its new version once committed
  DType dtype_ = DType::kF32;
  int64_t total_bytes_ = 0;
  int64_t received_bytes_ = 0;            // in order; in place when nothing is written
  int writes_ = 0;                        // writes of chunks in progress
  Checksum checksum_;                     // of what was received
  std::multimap<int64_t, Waiter> early_;  // chunks behind a gap, by offset
  std::vector<Waiter> waiters_;           // they wait until everything is in place, or for the end
  std::vector<std::function<void()>> aborters_;
  int64_t heard_ns_;  // time of the last message, or of its bytes' arrival in place
};

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
             UploadRecord::Answer answer);
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
