#include "daemon/node/uploads.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_format.h"
#include "kernels/base/checksum.h"
#include "kernels/base/clock.h"
#include "kernels/base/deferred.h"
#include "kernels/base/status.h"
#include "proto/convert/blocks.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

constexpr size_t kMaxEarlyChunks = 16;
// Bound on the chunks of one upload that are not in place yet, early or not.
constexpr size_t kMaxHeldChunks = 2 * kMaxEarlyChunks;

using Answer = Reply<v1::UploadResponse>;

}  // namespace

// One upload: its lease and its progress. Thread-safe; answers run without its lock, on any thread.
// Uploads makes and finds it.
class UploadRecord : public std::enable_shared_from_this<UploadRecord> {
 public:
  // `closed` runs with OK when the upload has been committed, or with the reason when it has
  // failed, before any answer reports this.
  UploadRecord(const TransferParts& parts, const v1::BeginUpload& begin,
               absl::Duration silence_limit,
               std::function<void(const absl::Status& failure)> closed)
      : parts_(parts),
        begin_(begin),
        silence_limit_(silence_limit),
        closed_(std::move(closed)),
        heard_ns_(MonotonicNanos()) {}

  // Requests the lease, on behalf of `call`. To be called once.
  void Open(CallContext call) {
    call.cancel = opening_;
    v1::BeginLeaseRequest request;
    request.set_write(true);
    if (begin_.has_put()) {
      *request.mutable_put() = begin_.put();
    } else {
      request.set_tensor_id(begin_.tensor_id());
    }
    Watch(silence_limit_);
    HeldLease::Begin(parts_, call, std::move(request),
                     [self = shared_from_this()](absl::StatusOr<HeldLease> lease) {
                       self->OnOpened(std::move(lease));
                     });
  }

  // Takes a message, whose `begin` is this upload's. Answers once its chunk is in place, or, with a
  // commit, once the new contents count; without either, once all received bytes are in place.
  // Chunks that arrive early wait for the missing ones, and one chunk waits for the lease, as long
  // as their clients wait; bytes that were already received are skipped. INVALID_ARGUMENT leaves
  // the upload as it was; all other errors end it.
  void Take(const CallContext& call, std::shared_ptr<v1::UploadRequest> message, Answer answer) {
    Deferred after;
    std::lock_guard lock(mutex_);
    heard_ns_ = MonotonicNanos();
    FailIfGenerationEnded();
    Waiter waiter{std::move(answer), call.cancel, std::move(message)};
    const bool chunk = waiter.message->has_chunk(), commit = waiter.message->has_commit();
    const int64_t offset = waiter.message->chunk().offset_bytes();
    if (const absl::Status refusal = CheckRoom(*waiter.message); !refusal.ok()) {
      AnswerOne(waiter, refusal, &after);
    } else if (phase_ < Phase::kComplete && (chunk || commit)) {
      if (phase_ == Phase::kOpening || offset > received_bytes_) {
        after.Add([weak = weak_from_this(), cancel = waiter.cancel] {
          cancel->OnCancel([weak](const absl::Status&) {
            if (const auto self = weak.lock(); self != nullptr) self->DropAbandoned();
          });
        });
      }
      early_.emplace(chunk ? offset : received_bytes_, std::move(waiter));
    } else {
      waiters_.push_back(std::move(waiter));
    }
    Drive(&after);
  }

  // Ends the upload with `why` if it is not being committed; calls `done` once its lease has been
  // returned.
  void Abort(absl::Status why, std::function<void()> done) {
    Deferred after;
    std::lock_guard lock(mutex_);
    if (phase_ > Phase::kClosing) return after.Add(std::move(done));
    aborters_.push_back(std::move(done));
    // A requested commit is not undone.
    if (phase_ < Phase::kComplete) Fail(std::move(why));
    Drive(&after);
  }

  // Ends the upload if it, or its tensor, belongs to the session.
  void EndSession(const std::string& session_id) {
    {
      std::lock_guard lock(mutex_);
      if (lease_.tensor().session_id() != session_id && begin_.put().session_id() != session_id)
        return;
    }
    Abort(absl::CancelledError("the session of this upload has ended"), [] {});
  }

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

  void OnOpened(absl::StatusOr<HeldLease> lease) {
    Deferred after;
    std::lock_guard lock(mutex_);
    phase_ = Phase::kOpen;
    heard_ns_ = MonotonicNanos();
    if (!lease.ok()) {
      Fail(lease.status());
    } else {
      lease_ = *std::move(lease);
      const v1::TensorSpec& spec = lease_.tensor().spec();
      const absl::StatusOr<DType> dtype = FromProto(spec.dtype());
      if (!dtype.ok()) Fail(dtype.status());
      dtype_ = dtype.value_or(DType::kF32);
      total_bytes_ = spec.rows() * spec.cols() * SizeOf(dtype_);
    }
    Drive(&after);
  }

  // Called once the bytes of `placed` are in place, or cannot be.
  void OnPlaced(Waiter placed, absl::Status status) {
    Deferred after;
    std::lock_guard lock(mutex_);
    heard_ns_ = MonotonicNanos();
    --writes_;
    if (!status.ok()) Fail(std::move(status));
    if (placed.answer != nullptr) {
      if (failure_.ok()) {
        AnswerOne(placed, Result(), &after);
      } else {
        waiters_.push_back(std::move(placed));
      }
    }
    Drive(&after);
  }

  // Drops the early chunks of clients that have left, because they would send them again.
  void DropAbandoned() {
    Deferred after;
    std::lock_guard lock(mutex_);
    std::erase_if(early_, [&](const auto& chunk) {
      const absl::Status left = chunk.second.cancel->status();
      if (!left.ok()) AnswerOne(chunk.second, left, &after);
      return !left.ok();
    });
  }

  void OnClosed(bool commit, absl::StatusOr<v1::EndLeaseResponse> response) {
    Deferred after;
    std::lock_guard lock(mutex_);
    if (commit) failure_ = response.status();
    phase_ = failure_.ok() ? Phase::kCommitted : Phase::kAborted;
    if (failure_.ok()) committed_ = std::move(*response->mutable_tensor());
    after.Add([closed = closed_, failure = failure_] { closed(failure); });
    AnswerAll(&after);
    for (auto& done : std::exchange(aborters_, {})) after.Add(std::move(done));
  }

  // Fails the upload after `delay` if its client is silent until then.
  void Watch(absl::Duration delay) {
    parts_.loop->PostAfter(delay, [weak = weak_from_this()] {
      if (const auto self = weak.lock(); self != nullptr) self->OnWatch();
    });
  }

  void OnWatch() {
    Deferred after;
    std::lock_guard lock(mutex_);
    if (!failure_.ok() || phase_ >= Phase::kClosing) return;
    // A client that waits for work of the daemon does not count as silent.
    const bool ours =
        writes_ > 0 || phase_ == Phase::kComplete || (phase_ == Phase::kOpening && ClientWaits());
    const absl::Duration quiet = absl::Nanoseconds(MonotonicNanos() - heard_ns_);
    if (ours || quiet < silence_limit_) {
      const absl::Duration delay = ours ? silence_limit_ : silence_limit_ - quiet;
      return after.Add([self = shared_from_this(), delay] { self->Watch(delay); });
    }
    Fail(absl::DeadlineExceededError(
        absl::StrFormat("the client sent nothing of upload %s for %s; its space was freed",
                        begin_.upload_id(), absl::FormatDuration(silence_limit_))));
    Drive(&after);
  }

  // This, and all below, require the lock. The first error ends the upload.
  void Fail(absl::Status why) {
    if (failure_.ok() && phase_ < Phase::kClosing) failure_ = std::move(why);
  }

  void FailIfGenerationEnded() {
    if (phase_ != Phase::kOpen || !lease_.held()) return;
    if (absl::Status status = lease_.CheckGeneration(); !status.ok()) Fail(std::move(status));
  }

  // Refuses a chunk if the daemon already keeps too many messages of this upload, and a commit that
  // repeats an earlier one with another checksum.
  absl::Status CheckRoom(const v1::UploadRequest& message) const {
    const bool chunk = message.has_chunk();
    // The messages that the daemon holds for this upload, in its own memory.
    const size_t held = early_.size() + waiters_.size() + static_cast<size_t>(writes_);
    if (chunk && held >= kMaxHeldChunks) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%d chunks of this upload are not in place yet; wait for their answers first",
          kMaxHeldChunks));
    }
    if (chunk && phase_ == Phase::kOpening && !early_.empty()) {
      return absl::InvalidArgumentError(
          "a chunk of this upload already waits for its lease, and the daemon keeps only one until "
          "then; wait for its answer first");
    }
    if (early_.size() >= kMaxEarlyChunks &&
        (phase_ == Phase::kOpening ||
         (chunk && message.chunk().offset_bytes() > received_bytes_))) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%d chunks of this upload wait for the ones before them; send the missing ones "
          "first",
          kMaxEarlyChunks));
    }
    if (phase_ >= Phase::kComplete && message.has_commit() && failure_.ok())
      return CheckCommit(message.commit());
    return absl::OkStatus();
  }

  absl::Status CheckChunk(const v1::UploadChunk& chunk) const {
    const int64_t offset = chunk.offset_bytes(), size = static_cast<int64_t>(chunk.data().size());
    if (offset - received_bytes_ > kUploadWindowBytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a chunk begins at byte %d of upload %s; expected %d, or at most %d more: "
          "send chunks in order, without gaps",
          offset, begin_.upload_id(), received_bytes_, kUploadWindowBytes));
    }
    const v1::TensorSpec& spec = lease_.tensor().spec();
    return Annotate(RectsOfPiece(spec.rows(), spec.cols(), dtype_, offset, size).status(),
                    "a chunk");
  }

  absl::Status CheckCommit(const v1::CommitUpload& commit) const {
    if (received_bytes_ < total_bytes_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("upload %s is committed after %d of %d bytes; send the rest first",
                          begin_.upload_id(), received_bytes_, total_bytes_));
    }
    if (checksum_.value() == commit.checksum()) return absl::OkStatus();
    return absl::DataLossError(absl::StrFormat(
        "upload %s: the received bytes have checksum %016x, the client's have %016x; "
        "send them again",
        begin_.upload_id(), checksum_.value(), commit.checksum()));
  }

  // Takes all steps that have become possible.
  void Drive(Deferred* after) {
    if (phase_ == Phase::kOpening) {
      if (!failure_.ok()) after->Add([cancel = opening_, why = failure_] { cancel->Cancel(why); });
      return;
    }
    if (phase_ == Phase::kOpen) TakeChunks(after);
    if (phase_ > Phase::kClosing) return AnswerAll(after);
    if (writes_ > 0 || phase_ == Phase::kClosing) return;
    if (failure_.ok() && phase_ == Phase::kOpen) return AnswerAll(after);
    phase_ = Phase::kClosing;
    const bool commit = failure_.ok();
    const LeaseEnd how = commit                 ? LeaseEnd::kCommitted
                         : received_bytes_ == 0 ? LeaseEnd::kUntouched
                                                : LeaseEnd::kSpoiled;
    after->Add([self = shared_from_this(), commit, how] {
      const auto closed = [self, commit](absl::StatusOr<v1::EndLeaseResponse> response) {
        self->OnClosed(commit, std::move(response));
      };
      if (!self->lease_.held()) return closed(v1::EndLeaseResponse());
      self->lease_.Return(how, closed);
    });
  }

  // Takes the chunks that come next.
  void TakeChunks(Deferred* after) {
    for (auto it = early_.begin(); it != early_.end() && phase_ == Phase::kOpen && failure_.ok();) {
      const v1::UploadRequest& message = *it->second.message;
      const v1::UploadChunk& chunk = message.chunk();
      // A commit may have no chunk.
      const absl::Status refusal = message.has_chunk() ? CheckChunk(chunk) : absl::OkStatus();
      if (refusal.ok() && chunk.offset_bytes() > received_bytes_) {
        ++it;
        continue;
      }
      Waiter waiter = std::move(it->second);
      it = early_.erase(it);
      if (!refusal.ok()) {
        AnswerOne(waiter, refusal, after);
        continue;
      }
      absl::string_view data = chunk.data();
      data.remove_prefix(std::min<int64_t>(data.size(), received_bytes_ - chunk.offset_bytes()));
      const int64_t offset = received_bytes_;
      received_bytes_ += static_cast<int64_t>(data.size());
      checksum_.Add(data);
      const bool commit = waiter.message->has_commit();
      if (!data.empty()) {
        ++writes_;
        Waiter placed{commit ? Answer() : waiter.answer, waiter.cancel, waiter.message};
        after->Add([self = shared_from_this(), offset, data, placed = std::move(placed)] {
          self->parts_.io->Write(
              self->lease_.tensor(), offset, data, self->lease_.local_generation(),
              [self, placed](absl::Status status) { self->OnPlaced(placed, std::move(status)); });
        });
      } else if (!commit) {
        waiter.message.reset();
        waiters_.push_back(std::move(waiter));
      }
      if (commit) Commit(std::move(waiter), after);
    }
  }

  void Commit(Waiter waiter, Deferred* after) {
    const absl::Status refusal = CheckCommit(waiter.message->commit());
    if (absl::IsInvalidArgument(refusal)) return AnswerOne(waiter, refusal, after);
    // Answered once the lease has been returned, even if the checksum differs.
    waiters_.push_back(std::move(waiter));
    if (refusal.ok()) {
      phase_ = Phase::kComplete;
    } else {
      Fail(refusal);
    }
  }

  static void AnswerOne(const Waiter& waiter, absl::StatusOr<v1::UploadResponse> result,
                        Deferred* after) {
    after->Add([answer = waiter.answer, result = std::move(result)] { answer(result); });
  }

  // Answers `waiters_` and, once the upload has ended, early chunks.
  void AnswerAll(Deferred* after) {
    if (phase_ > Phase::kClosing) {
      for (auto& [offset, waiter] : early_) waiters_.push_back(std::move(waiter));
      early_.clear();
    }
    for (const Waiter& waiter : std::exchange(waiters_, {})) AnswerOne(waiter, Result(), after);
  }

  absl::StatusOr<v1::UploadResponse> Result() const {
    if (!failure_.ok()) return failure_;
    v1::UploadResponse response;
    response.set_committed_bytes(received_bytes_);
    response.set_total_bytes(total_bytes_);
    if (phase_ == Phase::kCommitted) *response.mutable_tensor() = committed_;
    return response;
  }

  bool ClientWaits() const {
    const auto waits = [](const Waiter& waiter) { return waiter.cancel->status().ok(); };
    return std::any_of(waiters_.begin(), waiters_.end(), waits) ||
           std::any_of(early_.begin(), early_.end(),
                       [&](const auto& e) { return waits(e.second); });
  }

  const TransferParts parts_;
  const v1::BeginUpload begin_;
  const absl::Duration silence_limit_;
  const std::function<void(const absl::Status&)> closed_;
  // Ends the wait for the lease, with the upload and not with its client.
  const std::shared_ptr<CancelToken> opening_ = std::make_shared<CancelToken>();

  std::mutex mutex_;  // of all below
  Phase phase_ = Phase::kOpening;
  absl::Status failure_;
  HeldLease lease_;  // constant once it is granted
  v1::Tensor committed_;
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

Uploads::Uploads(const TransferParts& parts, UploadLimits limits)
    : parts_(parts),
      limits_(limits),
      quota_({"uploads", "are open at this daemon", "wait for one to end, or ask another daemon"},
             OwnerQuota::Quarters(limits.max_open)) {}

Uploads::~Uploads() { Stop(); }

void Uploads::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (const RecordPtr& upload : All())
    upload->Abort(absl::UnavailableError("the daemon is stopping"), [] {});
  std::unique_lock lock(mutex_);
  closed_.wait(lock, [this] { return open() == 0; });
}

void Uploads::Forget() {
  const int64_t oldest_ns = MonotonicNanos() - absl::ToInt64Nanoseconds(limits_.kept);
  const auto over = [&](const auto& ids) {
    return !ids.empty() && (ids.front().first <= oldest_ns || ids.size() > limits_.max_kept);
  };
  for (; over(kept_); kept_.pop_front()) uploads_.erase(kept_.front().second);
  for (; over(ends_); ends_.pop_front()) {
    const auto it = ended_.find(ends_.front().second);
    // An upload may have begun and ended again since.
    if (it != ended_.end() && it->second.at_ns == ends_.front().first) ended_.erase(it);
  }
}

void Uploads::Remember(const std::string& id, absl::Status why, bool by_client) {
  const int64_t now_ns = MonotonicNanos();
  ends_.emplace_back(now_ns, id);
  ended_.insert_or_assign(id, End{std::move(why), by_client, now_ns});
}

void Uploads::Close(const std::string& id, const std::string& principal,
                    const absl::Status& failure) {
  quota_.Return(principal);
  RecordPtr gone;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  if (failure.ok()) {
    kept_.emplace_back(MonotonicNanos(), id);
  } else {
    gone = uploads_.extract(id).mapped();
    const auto end = ended_.find(id);
    if (end == ended_.end() || !end->second.by_client) Remember(id, failure, /*by_client=*/false);
  }
  closed_.notify_all();
  Forget();
}

std::vector<Uploads::RecordPtr> Uploads::All() {
  std::lock_guard lock(mutex_);
  std::vector<RecordPtr> all;
  for (const auto& [id, upload] : uploads_) all.push_back(upload);
  return all;
}

Uploads::RecordPtr Uploads::Find(const std::string& id) {
  Forget();
  const auto it = uploads_.find(id);
  return it == uploads_.end() ? nullptr : it->second;
}

absl::StatusOr<Uploads::RecordPtr> Uploads::FindOrMake(const CallContext& call,
                                                       const v1::UploadRequest& message,
                                                       bool* made) {
  const std::string& id = message.begin().upload_id();
  std::lock_guard lock(mutex_);
  if (stopping_) return absl::UnavailableError("the daemon is stopping");
  if (RecordPtr upload = Find(id); upload != nullptr) return upload;
  // Chunks that were in flight when the upload ended get the reason; its client may begin again.
  const bool begins = message.chunk().offset_bytes() == 0;
  const auto end = ended_.find(id);
  if (end != ended_.end() && (end->second.by_client || !begins)) return end->second.why;
  if (!begins) {
    return absl::NotFoundError(
        absl::StrFormat("upload %s is unknown to this daemon, which remembers ended uploads for %s "
                        "at most and until it stops; begin again",
                        id, absl::FormatDuration(limits_.kept)));
  }
  AGMM_RETURN_IF_ERROR(quota_.Take(call.principal));
  *made = true;
  auto upload = std::make_shared<UploadRecord>(
      parts_, message.begin(), limits_.silence,
      [this, id, principal = call.principal](const absl::Status& failure) {
        Close(id, principal, failure);
      });
  uploads_.emplace(id, upload);
  return upload;
}

void Uploads::Write(const CallContext& call, std::shared_ptr<v1::UploadRequest> message,
                    Reply<v1::UploadResponse> answer) {
  absl::StatusOr<std::shared_ptr<void>> memory =
      TakeMemory(parts_, call.principal, static_cast<int64_t>(message->ByteSizeLong()));
  if (!memory.ok()) return answer(memory.status());
  v1::UploadRequest* const taken = message.get();
  // The memory is returned with the message.
  message = std::shared_ptr<v1::UploadRequest>(
      taken, [message = std::move(message), memory = *std::move(memory)](auto*) mutable {
        message.reset();
        memory.reset();
      });
  bool made = false;
  const absl::StatusOr<RecordPtr> upload = FindOrMake(call, *message, &made);
  if (!upload.ok()) return answer(upload.status());
  if (!made && (*upload)->begin() != message->begin().SerializeAsString()) {
    return answer(absl::AlreadyExistsError(
        absl::StrFormat("upload %s was begun with another target; give this one an id of its own",
                        message->begin().upload_id())));
  }
  (*upload)->Take(call, std::move(message), std::move(answer));
  if (made) (*upload)->Open(call);
}

void Uploads::Abort(const v1::AbortUploadRequest& request, Reply<v1::AbortUploadResponse> reply) {
  const std::string& id = request.upload_id();
  std::unique_lock lock(mutex_);
  // Later messages of the upload are refused.
  Remember(id,
           absl::AbortedError(absl::StrFormat(
               "upload %s was aborted by its client; begin another, with an id of its own", id)),
           /*by_client=*/true);
  const RecordPtr upload = Find(id);
  lock.unlock();
  if (upload == nullptr) return reply(v1::AbortUploadResponse());
  upload->Abort(absl::AbortedError("the upload was aborted by its client"),
                [reply = std::move(reply)] { reply(v1::AbortUploadResponse()); });
}

void Uploads::EndSession(const std::string& session_id) {
  for (const RecordPtr& upload : All()) upload->EndSession(session_id);
}

}  // namespace agmm
