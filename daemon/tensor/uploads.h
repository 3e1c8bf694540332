// The uploads that come through this daemon, by the ids that their clients gave them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/tensor/upload.h"

namespace agmm {

struct UploadLimits {
  // An upload of which nothing is heard for so long loses its lease, so that its space comes back.
  absl::Duration silence = absl::Seconds(60);
  // How long a commit may be repeated, and an aborted id may not; and how many of each are
  // remembered at most.
  absl::Duration kept = absl::Seconds(60);
  size_t max_kept = 1 << 16;
  size_t max_open = 1024;
};

// Thread-safe.
class Uploads {
 public:
  explicit Uploads(const TransferParts& parts, UploadLimits limits = {});
  // Ends all, gives their leases back and waits for that: the answers of Control always come.
  ~Uploads();

  struct Hold {
    std::shared_ptr<UploadRecord> upload;
    uint64_t stream = 0;
  };
  // Attaches a stream to the upload that `begin`, which is valid, names; it is opened for `call` if
  // there is none. After an error nobody is told anything. Errors: ALREADY_EXISTS for an id that
  // began otherwise; ABORTED for one that was; RESOURCE_EXHAUSTED; UNAVAILABLE when stopping.
  absl::StatusOr<Hold> Attach(const CallContext& call, const v1::BeginUpload& begin,
                              UploadRecord::Listener listener);
  // Errors: NOT_FOUND, or why it has ended just now.
  void Get(const v1::GetUploadRequest& request, Reply<v1::Upload> reply);
  // Calls overtake streams: an id that is not there yet will not begin.
  void Abort(const v1::AbortUploadRequest& request, Reply<v1::AbortUploadResponse> reply);
  // Ends those of the session.
  void EndSession(const std::string& session_id);

 private:
  struct Registry;
  const TransferParts parts_;
  const std::shared_ptr<Registry> registry_;
};

}  // namespace agmm
