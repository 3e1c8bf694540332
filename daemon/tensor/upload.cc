#include "daemon/tensor/upload.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "proto/convert/blocks.h"
#include "proto/convert/problem.h"

namespace agmm {

// What is told once the lock is gone: declared before it.
class UploadRecord::After {
 public:
  void Add(std::function<void()> call) { calls_.push_back(std::move(call)); }
  ~After() {
    for (auto& call : calls_) call();
  }

 private:
  std::vector<std::function<void()>> calls_;
};

UploadRecord::UploadRecord(const TransferParts& parts, const v1::BeginUpload& begin,
                           absl::Duration silence_limit, std::function<void(bool committed)> closed)
    : parts_(parts),
      id_(begin.upload_id()),
      begin_(begin.SerializeAsString()),
      request_(begin),
      silence_limit_(silence_limit),
      closed_(std::move(closed)),
      era_(parts.io->era()),
      last_ns_(MonotonicNanos()) {}

void UploadRecord::Open(const CallContext& call) {
  call_ = call;
  v1::BeginAccessRequest request;
  request.set_write(true);
  if (request_.has_put()) {
    *request.mutable_put() = request_.put();
  } else {
    request.set_tensor_id(request_.tensor_id());
  }
  Watch(silence_limit_);
  CallContext opening = call_;
  opening.cancel = waiting_;
  BeginAccess(parts_, opening, std::move(request),
              [self = shared_from_this()](absl::StatusOr<v1::BeginAccessResponse> response) {
                self->OnOpened(std::move(response));
              });
}

void UploadRecord::OnOpened(absl::StatusOr<v1::BeginAccessResponse> response) {
  After after;
  std::lock_guard lock(mutex_);
  opening_ = false;
  last_ns_ = MonotonicNanos();
  if (!response.ok()) {
    Fail(response.status());
  } else {
    access_id_ = response->access_id();
    tensor_ = std::move(*response->mutable_tensor());
    const absl::StatusOr<DType> dtype = FromProto(tensor_.spec().dtype());
    if (!dtype.ok()) Fail(dtype.status());
    element_bytes_ = dtype.ok() ? SizeOf(*dtype) : 1;
    total_bytes_ = tensor_.spec().rows() * tensor_.spec().cols() * element_bytes_;
    if (failure_.ok() && stream_.listener.opened) {
      after.Add(
          [opened = std::exchange(stream_.listener.opened, nullptr)] { opened(absl::OkStatus()); });
    }
  }
  Drive(&after);
}

uint64_t UploadRecord::Attach(Listener listener) {
  After after;
  std::lock_guard lock(mutex_);
  if (closed_now_ && !failure_.ok()) return 0;
  CheckEra();
  EndStream(absl::AbortedError(
                absl::StrFormat("another stream has come for upload %s; go on with that one", id_)),
            &after);
  last_ns_ = MonotonicNanos();
  stream_ = {++streams_, -1, std::move(listener)};
  // A committed upload is watched while a stream is there.
  if (closed_now_ && !watching_) {
    watching_ = true;
    after.Add([this, self = shared_from_this()] { Watch(silence_limit_); });
  }
  if (!opening_ && failure_.ok()) {
    after.Add(
        [opened = std::exchange(stream_.listener.opened, nullptr)] { opened(absl::OkStatus()); });
  }
  Drive(&after);
  return streams_;
}

void UploadRecord::Detach(uint64_t stream) {
  After after;
  std::lock_guard lock(mutex_);
  // A failure is told once its lease is given back.
  if (stream_.number != stream || (!failure_.ok() && !closed_now_)) return;
  last_ns_ = MonotonicNanos();
  EndStream(absl::OkStatus(), &after);
}

void UploadRecord::EndStream(const absl::Status& why, After* after) {
  if (stream_.number == 0) return;
  after->Add([listener = std::move(stream_.listener), why] {
    // A copy: the last call may end whoever holds the rest.
    const Listener told = listener;
    if (told.opened) told.opened(why.ok() ? absl::CancelledError("the stream has ended") : why);
    told.ended(why);
  });
  stream_ = {};
}

absl::Status UploadRecord::CheckChunk(const v1::UploadChunk& chunk) const {
  const int64_t offset = chunk.offset_bytes(), size = static_cast<int64_t>(chunk.data().size());
  const bool first = stream_.position_bytes < 0;
  if (offset < 0 || (first ? offset > accepted_bytes_ : offset != stream_.position_bytes)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a chunk begins at byte %d of upload %s; expected %d: chunks come in order, without gaps",
        offset, id_, first ? accepted_bytes_ : stream_.position_bytes));
  }
  if (size == 0 || size > kMaxPieceBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a chunk has %d bytes; 1 to %d are taken", size, kMaxPieceBytes));
  }
  if (offset % element_bytes_ != 0 || size % element_bytes_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a chunk has %d bytes from byte %d; whole elements of %d bytes are taken",
                        size, offset, element_bytes_));
  }
  if (size <= total_bytes_ - offset) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("a chunk ends at byte %d; tensor %d has %d",
                                                    offset + size, tensor_.tensor_id(),
                                                    total_bytes_));
}

void UploadRecord::Place(uint64_t stream, const v1::UploadChunk& chunk, Told done) {
  After after;
  absl::string_view data = chunk.data();
  int64_t offset = 0;
  absl::Status refusal;
  {
    std::lock_guard lock(mutex_);
    last_ns_ = MonotonicNanos();
    CheckEra();
    refusal = failure_;
    if (refusal.ok() && stream != stream_.number)
      refusal = absl::AbortedError("another stream has taken over");
    if (refusal.ok()) refusal = CheckChunk(chunk);
    if (refusal.ok()) {
      stream_.position_bytes = chunk.offset_bytes() + static_cast<int64_t>(data.size());
      data.remove_prefix(std::min<int64_t>(data.size(), accepted_bytes_ - chunk.offset_bytes()));
      offset = accepted_bytes_;
      accepted_bytes_ += static_cast<int64_t>(data.size());
      checksum_.Add(data);
      if (!data.empty()) ++placing_;
    }
    Drive(&after);
  }
  if (!refusal.ok() || data.empty()) return done(refusal);
  parts_.io->Write(tensor_, offset, data, era_,
                   [self = shared_from_this(), done = std::move(done)](absl::Status status) {
                     self->OnPlaced(status);
                     done(std::move(status));
                   });
}

void UploadRecord::OnPlaced(const absl::Status& status) {
  After after;
  std::lock_guard lock(mutex_);
  last_ns_ = MonotonicNanos();
  --placing_;
  if (!status.ok()) Fail(status);
  Drive(&after);
}

absl::Status UploadRecord::CheckCommit(uint64_t checksum) {
  if (accepted_bytes_ < total_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("upload %s is committed after %d of %d bytes; send the rest first", id_,
                        accepted_bytes_, total_bytes_));
  }
  if (checksum_.value() == checksum) return absl::OkStatus();
  const absl::Status lost =
      absl::DataLossError(absl::StrFormat("upload %s: the bytes that came have checksum %016x, the "
                                          "client's have %016x; send them again",
                                          id_, checksum_.value(), checksum));
  if (committed_.tensor_id() == 0 && !committing_) Fail(lost);
  return lost;
}

void UploadRecord::Commit(uint64_t stream, uint64_t checksum, Reply<v1::Tensor> reply) {
  After after;
  std::lock_guard lock(mutex_);
  last_ns_ = MonotonicNanos();
  CheckEra();
  absl::Status refusal = failure_;
  if (refusal.ok() && stream != stream_.number)
    refusal = absl::AbortedError("another stream has taken over");
  const bool failed_before = !refusal.ok();
  if (refusal.ok()) refusal = CheckCommit(checksum);
  if (refusal.ok() && committed_.tensor_id() != 0) {
    after.Add([reply = std::move(reply), tensor = committed_] { reply(tensor); });
  } else if (refusal.ok() || (!failed_before && !failure_.ok())) {
    // Told once the lease is given back, also of a checksum that differs.
    committing_ |= refusal.ok();
    committers_.push_back(std::move(reply));
  } else {
    after.Add([reply = std::move(reply), refusal] { reply(refusal); });
  }
  Drive(&after);
}

v1::Upload UploadRecord::Progress() const {
  v1::Upload upload;
  upload.set_upload_id(id_);
  upload.set_committed_bytes(accepted_bytes_);
  upload.set_total_bytes(total_bytes_);
  if (committed_.tensor_id() != 0) *upload.mutable_tensor() = committed_;
  return upload;
}

void UploadRecord::Get(Reply<v1::Upload> reply) {
  After after;
  std::lock_guard lock(mutex_);
  CheckEra();
  if (closed_now_ && !failure_.ok()) {
    after.Add([reply = std::move(reply), failure = failure_] { reply(failure); });
  } else if (opening_ && failure_.ok()) {
    after.Add([reply = std::move(reply), progress = Progress()] { reply(progress); });
  } else {
    watchers_.push_back(std::move(reply));
  }
  Drive(&after);
}

void UploadRecord::Abort(absl::Status why, std::function<void()> done) {
  After after;
  std::lock_guard lock(mutex_);
  if (closed_now_) return after.Add(std::move(done));
  aborters_.push_back(std::move(done));
  // What is being committed is too late to end.
  if (!committing_) Fail(std::move(why));
  Drive(&after);
}

void UploadRecord::EndSession(const std::string& session_id) {
  {
    std::lock_guard lock(mutex_);
    const bool tensors = !opening_ && tensor_.session_id() == session_id;
    if (!tensors && request_.put().session_id() != session_id) return;
  }
  Abort(absl::CancelledError("the session of this upload has ended"), [] {});
}

void UploadRecord::Fail(absl::Status why) {
  if (failure_.ok() && !closed_now_) failure_ = std::move(why);
}

void UploadRecord::CheckEra() {
  if (opening_ || committing_ || committed_.tensor_id() != 0) return;
  if (absl::Status status = parts_.io->CheckEra(tensor_, era_); !status.ok())
    Fail(std::move(status));
}

void UploadRecord::Drive(After* after) {
  if (failure_.ok() && !busy()) {
    for (auto& watcher : std::exchange(watchers_, {}))
      after->Add([watcher = std::move(watcher), progress = Progress()] { watcher(progress); });
  }
  if (opening_ && !failure_.ok())
    after->Add([cancel = waiting_, why = failure_] { cancel->Cancel(why); });
  if (opening_ || placing_ > 0 || closing_) return;
  const std::shared_ptr<UploadRecord> self = shared_from_this();
  if (!failure_.ok()) {
    closing_ = true;
    if (access_id_ == 0) return after->Add([self] { self->OnGivenBack(); });
    const AccessEnd how = accepted_bytes_ == 0 ? AccessEnd::kUntouched : AccessEnd::kSpoiled;
    after->Add([self, access = access_id_, how] {
      EndAccess(self->parts_, self->call_, access, how,
                [self](const absl::StatusOr<v1::EndAccessResponse>&) { self->OnGivenBack(); });
    });
  } else if (committing_) {
    closing_ = true;
    after->Add([self, access = access_id_] {
      EndAccess(self->parts_, self->call_, access, AccessEnd::kCommitted,
                [self](absl::StatusOr<v1::EndAccessResponse> response) {
                  self->OnCommitted(std::move(response));
                });
    });
  }
}

void UploadRecord::OnCommitted(absl::StatusOr<v1::EndAccessResponse> response) {
  After after;
  {
    std::lock_guard lock(mutex_);
    committing_ = false;
    if (response.ok()) {
      committed_ = std::move(*response->mutable_tensor());
      closed_now_ = true;
      after.Add([closed = closed_] { closed(true); });
      for (auto& reply : std::exchange(committers_, {}))
        after.Add([reply = std::move(reply), tensor = committed_] { reply(tensor); });
      for (auto& done : std::exchange(aborters_, {})) after.Add(std::move(done));
      Drive(&after);
      return;
    }
    // The lease is gone, whatever the reason was.
    Fail(response.status());
  }
  OnGivenBack();
}

void UploadRecord::OnGivenBack() {
  After after;
  std::lock_guard lock(mutex_);
  closed_now_ = true;
  after.Add([closed = closed_] { closed(false); });
  for (auto& reply : std::exchange(committers_, {}))
    after.Add([reply = std::move(reply), failure = failure_] { reply(failure); });
  for (auto& watcher : std::exchange(watchers_, {}))
    after.Add([watcher = std::move(watcher), failure = failure_] { watcher(failure); });
  EndStream(failure_, &after);
  for (auto& done : std::exchange(aborters_, {})) after.Add(std::move(done));
}

void UploadRecord::Watch(absl::Duration delay) {
  parts_.loop->PostAfter(delay, [weak = weak_from_this()] {
    if (const std::shared_ptr<UploadRecord> upload = weak.lock(); upload != nullptr)
      upload->OnWatch();
  });
}

void UploadRecord::OnWatch() {
  After after;
  std::lock_guard lock(mutex_);
  watching_ = false;
  // What has failed ends its stream with its lease.
  if (!failure_.ok() || (closed_now_ && stream_.number == 0)) return;
  // While we are at work for a stream that waits, it is not the client who is silent.
  const bool ours = placing_ > 0 || committing_ || (opening_ && stream_.number != 0);
  const absl::Duration quiet = absl::Nanoseconds(MonotonicNanos() - last_ns_);
  if (ours || quiet < silence_limit_) {
    watching_ = true;
    after.Add([this, self = shared_from_this(),
               delay = ours ? silence_limit_ : silence_limit_ - quiet] { Watch(delay); });
    return;
  }
  if (closed_now_) {
    return EndStream(absl::DeadlineExceededError(absl::StrFormat(
                         "the client has sent nothing of upload %s, which is committed, for %s",
                         id_, absl::FormatDuration(silence_limit_))),
                     &after);
  }
  Fail(absl::DeadlineExceededError(
      absl::StrFormat("the client has sent nothing of upload %s for %s; its space was given back",
                      id_, absl::FormatDuration(silence_limit_))));
  Drive(&after);
}

}  // namespace agmm
