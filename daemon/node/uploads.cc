#include "daemon/node/uploads.h"

#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"

namespace agmm {

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
                    UploadRecord::Answer answer) {
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
