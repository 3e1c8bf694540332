#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/node/uploads.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"
#include "proto/convert/blocks.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {
constexpr size_t kMaxEarlyChunks = 16;
// Bound on chunks that are not in place yet, in any order, which a client can make the daemon hold.
constexpr size_t kMaxHeldChunks = 2 * kMaxEarlyChunks;
}  // namespace

UploadRecord::UploadRecord(const TransferParts& parts, const v1::BeginUpload& begin,
                           absl::Duration silence_limit,
                           std::function<void(const absl::Status& failure)> closed)
    : parts_(parts),
      begin_(begin),
      silence_limit_(silence_limit),
      closed_(std::move(closed)),
      local_generation_(parts.io->local_generation()),
      heard_ns_(MonotonicNanos()) {}

void UploadRecord::Open(const CallContext& call) {
  call_ = call;
  call_.cancel = opening_;
  v1::BeginLeaseRequest request;
  request.set_write(true);
  if (begin_.has_put()) {
    *request.mutable_put() = begin_.put();
  } else {
    request.set_tensor_id(begin_.tensor_id());
  }
  Watch(silence_limit_);
  BeginLease(parts_, call_, std::move(request),
             [self = shared_from_this()](absl::StatusOr<v1::BeginLeaseResponse> response) {
               self->OnOpened(std::move(response));
             });
}

void UploadRecord::OnOpened(absl::StatusOr<v1::BeginLeaseResponse> response) {
  Deferred after;
  std::lock_guard lock(mutex_);
  phase_ = Phase::kOpen;
  heard_ns_ = MonotonicNanos();
  if (!response.ok()) {
    Fail(response.status());
  } else {
    lease_id_ = response->lease_id();
    tensor_ = std::move(*response->mutable_tensor());
    const absl::StatusOr<DType> dtype = FromProto(tensor_.spec().dtype());
    if (!dtype.ok()) Fail(dtype.status());
    dtype_ = dtype.value_or(DType::kF32);
    total_bytes_ = tensor_.spec().rows() * tensor_.spec().cols() * SizeOf(dtype_);
  }
  Drive(&after);
}

void UploadRecord::Take(const CallContext& call, std::shared_ptr<v1::UploadRequest> message,
                        Answer answer) {
  Deferred after;
  std::lock_guard lock(mutex_);
  heard_ns_ = MonotonicNanos();
  CheckGeneration();
  const bool chunk = message->has_chunk(), commit = message->has_commit();
  const int64_t offset = message->chunk().offset_bytes();
  Waiter waiter{std::move(answer), call.cancel, std::move(message)};
  // The messages that the daemon holds for this upload, in its own memory.
  const size_t held = early_.size() + waiters_.size() + static_cast<size_t>(writes_);
  absl::Status refusal;
  if (chunk && held >= kMaxHeldChunks) {
    refusal = absl::InvalidArgumentError(absl::StrFormat(
        "%d chunks of this upload are not in place yet; wait for their answers first",
        kMaxHeldChunks));
  } else if (chunk && phase_ == Phase::kOpening && !early_.empty()) {
    refusal = absl::InvalidArgumentError(
        "a chunk of this upload waits for its lease, and the daemon keeps one until then; wait for "
        "its answer first");
  } else if (early_.size() >= kMaxEarlyChunks &&
             (phase_ == Phase::kOpening || (chunk && offset > received_bytes_))) {
    refusal = absl::InvalidArgumentError(
        absl::StrFormat("%d chunks of this upload wait for the ones before them; send those first",
                        kMaxEarlyChunks));
  } else if (phase_ >= Phase::kComplete && commit && failure_.ok()) {
    refusal = CheckCommit(waiter.message->commit());
  }
  if (!refusal.ok()) {
    Tell(waiter, refusal, &after);
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

void UploadRecord::DropAbandoned() {
  Deferred after;
  std::lock_guard lock(mutex_);
  for (auto it = early_.begin(); it != early_.end();) {
    const absl::Status left = it->second.cancel->status();
    if (left.ok()) {
      ++it;
      continue;
    }
    Tell(it->second, left, &after);
    it = early_.erase(it);
  }
}

void UploadRecord::Tell(const Waiter& waiter, absl::StatusOr<v1::UploadResponse> result,
                        Deferred* after) {
  after->Add([answer = waiter.answer, result = std::move(result)] { answer(result); });
}

absl::Status UploadRecord::CheckChunk(const v1::UploadChunk& chunk) const {
  const int64_t offset = chunk.offset_bytes(), size = static_cast<int64_t>(chunk.data().size());
  if (offset - received_bytes_ > kUploadWindowBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a chunk begins at byte %d of upload %s; expected %d, or at most %d more: "
                        "send chunks in order, without gaps",
                        offset, begin_.upload_id(), received_bytes_, kUploadWindowBytes));
  }
  const v1::TensorSpec& spec = tensor_.spec();
  return Annotate(RectsOfPiece(spec.rows(), spec.cols(), dtype_, offset, size).status(), "a chunk");
}

absl::Status UploadRecord::CheckCommit(const v1::CommitUpload& commit) const {
  if (received_bytes_ < total_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("upload %s is committed after %d of %d bytes; send the rest first",
                        begin_.upload_id(), received_bytes_, total_bytes_));
  }
  if (checksum_.value() == commit.checksum()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("upload %s: the received bytes have checksum %016x, the client's have %016x; "
                      "send them again",
                      begin_.upload_id(), checksum_.value(), commit.checksum()));
}

void UploadRecord::TakeChunks(Deferred* after) {
  for (auto it = early_.begin(); it != early_.end() && phase_ == Phase::kOpen && failure_.ok();) {
    const v1::UploadChunk& chunk = it->second.message->chunk();
    // A commit may have no chunk.
    const absl::Status refusal =
        it->second.message->has_chunk() ? CheckChunk(chunk) : absl::OkStatus();
    if (refusal.ok() && chunk.offset_bytes() > received_bytes_) {
      ++it;
      continue;
    }
    Waiter waiter = std::move(it->second);
    it = early_.erase(it);
    if (!refusal.ok()) {
      Tell(waiter, refusal, after);
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
            self->tensor_, offset, data, self->local_generation_,
            [self, placed](absl::Status status) { self->OnPlaced(placed, std::move(status)); });
      });
    } else if (!commit) {
      waiter.message.reset();
      waiters_.push_back(std::move(waiter));
    }
    if (commit) Commit(std::move(waiter), after);
  }
}

void UploadRecord::Commit(Waiter waiter, Deferred* after) {
  const absl::Status refusal = CheckCommit(waiter.message->commit());
  if (absl::IsInvalidArgument(refusal)) return Tell(waiter, refusal, after);
  // Answered once the lease has been returned, even if the checksum differs.
  waiters_.push_back(std::move(waiter));
  if (refusal.ok()) {
    phase_ = Phase::kComplete;
  } else {
    Fail(refusal);
  }
}

void UploadRecord::OnPlaced(Waiter waiter, absl::Status status) {
  Deferred after;
  std::lock_guard lock(mutex_);
  heard_ns_ = MonotonicNanos();
  --writes_;
  if (!status.ok()) Fail(std::move(status));
  if (waiter.answer != nullptr) {
    if (failure_.ok()) {
      Tell(waiter, Result(), &after);
    } else {
      waiters_.push_back(std::move(waiter));
    }
  }
  Drive(&after);
}

absl::StatusOr<v1::UploadResponse> UploadRecord::Result() const {
  if (!failure_.ok()) return failure_;
  v1::UploadResponse response;
  response.set_committed_bytes(received_bytes_);
  response.set_total_bytes(total_bytes_);
  if (phase_ == Phase::kCommitted) *response.mutable_tensor() = tensor_;
  return response;
}

void UploadRecord::AnswerAll(Deferred* after) {
  if (phase_ > Phase::kClosing) {
    for (auto& [offset, waiter] : early_) waiters_.push_back(std::move(waiter));
    early_.clear();
  }
  for (const Waiter& waiter : std::exchange(waiters_, {})) Tell(waiter, Result(), after);
}

void UploadRecord::Abort(absl::Status why, std::function<void()> done) {
  Deferred after;
  std::lock_guard lock(mutex_);
  if (phase_ > Phase::kClosing) return after.Add(std::move(done));
  aborters_.push_back(std::move(done));
  // A requested commit is not undone.
  if (phase_ < Phase::kComplete) Fail(std::move(why));
  Drive(&after);
}

void UploadRecord::EndSession(const std::string& session_id) {
  {
    std::lock_guard lock(mutex_);
    if (tensor_.session_id() != session_id && begin_.put().session_id() != session_id) return;
  }
  Abort(absl::CancelledError("the session of this upload has ended"), [] {});
}

void UploadRecord::Fail(absl::Status why) {
  if (failure_.ok() && phase_ < Phase::kClosing) failure_ = std::move(why);
}

void UploadRecord::CheckGeneration() {
  if (phase_ != Phase::kOpen) return;
  if (absl::Status status = parts_.io->CheckGeneration(tensor_.tensor_id(), local_generation_);
      !status.ok())
    Fail(std::move(status));
}

void UploadRecord::Drive(Deferred* after) {
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
  after->Add([self = shared_from_this(), commit, how, lease_id = lease_id_] {
    if (lease_id == 0) return self->OnClosed(false, v1::EndLeaseResponse());
    EndLease(self->parts_, self->call_,
             {lease_id, self->tensor_.tensor_id(), self->local_generation_}, how,
             [self, commit](absl::StatusOr<v1::EndLeaseResponse> response) {
               self->OnClosed(commit, std::move(response));
             });
  });
}

void UploadRecord::OnClosed(bool commit, absl::StatusOr<v1::EndLeaseResponse> response) {
  Deferred after;
  std::lock_guard lock(mutex_);
  if (commit) failure_ = response.status();
  phase_ = failure_.ok() ? Phase::kCommitted : Phase::kAborted;
  if (failure_.ok()) tensor_ = std::move(*response->mutable_tensor());
  after.Add([closed = closed_, failure = failure_] { closed(failure); });
  AnswerAll(&after);
  for (auto& done : std::exchange(aborters_, {})) after.Add(std::move(done));
}

void UploadRecord::Watch(absl::Duration delay) {
  parts_.loop->PostAfter(delay, [weak = weak_from_this()] {
    if (const std::shared_ptr<UploadRecord> upload = weak.lock(); upload != nullptr)
      upload->OnWatch();
  });
}

bool UploadRecord::ClientWaits() const {
  const auto waits = [](const Waiter& waiter) { return waiter.cancel->status().ok(); };
  return std::any_of(waiters_.begin(), waiters_.end(), waits) ||
         std::any_of(early_.begin(), early_.end(), [&](const auto& e) { return waits(e.second); });
}

void UploadRecord::OnWatch() {
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

}  // namespace agmm
