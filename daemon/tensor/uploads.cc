#include "daemon/tensor/uploads.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"

namespace agmm {

// Outlives Uploads in the hands of what is still being answered.
struct Uploads::Registry {
  explicit Registry(UploadLimits limits) : limits(limits) {}

  const UploadLimits limits;
  std::mutex mutex;
  std::condition_variable closed;  // an upload has
  std::map<std::string, std::shared_ptr<UploadRecord>> uploads ABSL_GUARDED_BY(mutex);
  // Committed ones, oldest first: when, which.
  std::deque<std::pair<int64_t, std::string>> kept ABSL_GUARDED_BY(mutex);
  // Ids that were aborted, also of uploads whose first message is still on its way; and when,
  // oldest first.
  std::set<std::string> aborted ABSL_GUARDED_BY(mutex);
  std::deque<std::pair<int64_t, std::string>> aborts ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;

  size_t open() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return uploads.size() - kept.size(); }
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const int64_t oldest_ns = MonotonicNanos() - absl::ToInt64Nanoseconds(limits.kept);
    const auto over = [&](const auto& ids) {
      return !ids.empty() && (ids.front().first <= oldest_ns || ids.size() > limits.max_kept);
    };
    while (over(kept)) {
      uploads.erase(kept.front().second);
      kept.pop_front();
    }
    while (over(aborts)) {
      aborted.erase(aborts.front().second);
      aborts.pop_front();
    }
  }
  // Its streams that come from now on are refused. Null: there is none.
  std::shared_ptr<UploadRecord> Abort(const std::string& id) {
    std::lock_guard lock(mutex);
    if (aborted.insert(id).second) aborts.emplace_back(MonotonicNanos(), id);
    return Look(id);
  }
  void Close(const std::string& id, bool committed) {
    std::shared_ptr<UploadRecord> gone;  // after the lock
    std::lock_guard lock(mutex);
    if (committed) {
      kept.emplace_back(MonotonicNanos(), id);
      closed.notify_all();
      return Forget();
    }
    const auto it = uploads.find(id);
    gone = std::move(it->second);
    uploads.erase(it);
    closed.notify_all();
  }
  std::vector<std::shared_ptr<UploadRecord>> All() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::vector<std::shared_ptr<UploadRecord>> all;
    for (const auto& [id, upload] : uploads) all.push_back(upload);
    return all;
  }
  std::shared_ptr<UploadRecord> Find(const std::string& id) {
    std::lock_guard lock(mutex);
    return Look(id);
  }
  std::shared_ptr<UploadRecord> Look(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Forget();
    const auto it = uploads.find(id);
    return it == uploads.end() ? nullptr : it->second;
  }
};

Uploads::Uploads(const TransferParts& parts, UploadLimits limits)
    : parts_(parts), registry_(std::make_shared<Registry>(limits)) {}

Uploads::~Uploads() {
  std::vector<std::shared_ptr<UploadRecord>> uploads;
  {
    std::lock_guard lock(registry_->mutex);
    registry_->stopping = true;
    uploads = registry_->All();
  }
  for (const auto& upload : uploads)
    upload->Abort(absl::UnavailableError("the daemon is stopping"), [] {});
  std::unique_lock lock(registry_->mutex);
  registry_->closed.wait(lock, [this] { return registry_->open() == 0; });
  // The committed ones, which hold the registry.
  const auto kept = std::exchange(registry_->uploads, {});
  registry_->kept.clear();
  lock.unlock();
}

absl::StatusOr<Uploads::Hold> Uploads::Attach(const CallContext& call, const v1::BeginUpload& begin,
                                              UploadRecord::Listener listener) {
  while (true) {
    std::shared_ptr<UploadRecord> upload;
    bool made = false;
    {
      std::lock_guard lock(registry_->mutex);
      registry_->Forget();
      if (registry_->stopping) return absl::UnavailableError("the daemon is stopping");
      if (const auto it = registry_->uploads.find(begin.upload_id());
          it != registry_->uploads.end()) {
        upload = it->second;
      } else if (registry_->aborted.contains(begin.upload_id())) {
        return absl::AbortedError(absl::StrFormat(
            "upload %s was aborted by its client; begin another, with an id of its own",
            begin.upload_id()));
      } else if (registry_->open() >= registry_->limits.max_open) {
        return absl::ResourceExhaustedError(
            absl::StrFormat("%d uploads are open at this daemon, as many as it takes; wait for one "
                            "to end, or ask another daemon",
                            registry_->open()));
      } else {
        made = true;
        upload =
            std::make_shared<UploadRecord>(parts_, begin, registry_->limits.silence,
                                           [registry = registry_, id = begin.upload_id()](
                                               bool committed) { registry->Close(id, committed); });
        registry_->uploads.emplace(begin.upload_id(), upload);
      }
    }
    if (!made && upload->begin() != begin.SerializeAsString()) {
      return absl::AlreadyExistsError(
          absl::StrFormat("upload %s was begun with another target; give this one an id of its own",
                          begin.upload_id()));
    }
    const uint64_t stream = upload->Attach(listener);
    if (made) upload->Open(call);
    if (stream != 0) return Hold{std::move(upload), stream};
  }
}

void Uploads::Get(const v1::GetUploadRequest& request, Reply<v1::Upload> reply) {
  if (const std::shared_ptr<UploadRecord> upload = registry_->Find(request.upload_id()))
    return upload->Get(std::move(reply));
  reply(absl::NotFoundError(absl::StrFormat(
      "there is no upload %s at this daemon: it was aborted, was silent for too long, or went with "
      "its world; begin again",
      request.upload_id())));
}

void Uploads::Abort(const v1::AbortUploadRequest& request, Reply<v1::AbortUploadResponse> reply) {
  const std::shared_ptr<UploadRecord> upload = registry_->Abort(request.upload_id());
  if (upload == nullptr) return reply(v1::AbortUploadResponse());
  upload->Abort(absl::AbortedError("the upload was aborted by its client"),
                [reply = std::move(reply)] { reply(v1::AbortUploadResponse()); });
}

void Uploads::EndSession(const std::string& session_id) {
  std::vector<std::shared_ptr<UploadRecord>> uploads;
  {
    std::lock_guard lock(registry_->mutex);
    uploads = registry_->All();
  }
  for (const auto& upload : uploads) upload->EndSession(session_id);
}

}  // namespace agmm
