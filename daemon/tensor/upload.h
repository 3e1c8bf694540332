// One upload at the daemon that receives it: its lease, how far it has come, and which stream
// writes it. It outlives its streams: bytes in flight land, and another stream goes on behind them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/call_context.h"
#include "daemon/tensor/access.h"
#include "kernels/base/checksum.h"

namespace agmm {

// Thread-safe. Callbacks run without its lock, on any thread, also before the call that brought
// them returns. Made and found by Uploads.
class UploadRecord : public std::enable_shared_from_this<UploadRecord> {
 public:
  using Told = std::function<void(absl::Status)>;

  // What an upload says to the stream that writes it: each once, whatever happens, in any order.
  struct Listener {
    Told opened;  // chunks may come; or an error, of which `ended` says the same
    Told ended;   // the stream's part is over: after Detach OK, else why
  };

  // `closed` runs when it has been committed, or has ended otherwise, before anybody else is told.
  UploadRecord(const TransferParts& parts, const v1::BeginUpload& begin,
               absl::Duration silence_limit, std::function<void(bool committed)> closed);

  // Asks for the lease. Once.
  void Open(const CallContext& call);
  // Takes over from the stream before. Returns the stream's number for the calls below, or 0 when
  // the upload has ended: then nobody is told anything.
  uint64_t Attach(Listener listener);
  void Detach(uint64_t stream);
  // `done` once the bytes are in place, and `data` are not needed any more. What is there already
  // is passed over. Errors: INVALID_ARGUMENT for a chunk that does not come next, which leaves the
  // upload as it was; all others end it.
  void Place(uint64_t stream, const v1::UploadChunk& chunk, Told done);
  // Errors: INVALID_ARGUMENT while bytes are missing; DATA_LOSS when the checksum differs.
  void Commit(uint64_t stream, uint64_t checksum, Reply<v1::Tensor> reply);
  // How far it is, once what has been received is in place.
  void Get(Reply<v1::Upload> reply);
  // Ends it with `why`, if it has not been committed; `done` when its lease is given back.
  void Abort(absl::Status why, std::function<void()> done);
  // Ends it if it, or its tensor, belongs to the session.
  void EndSession(const std::string& session_id);

  // As it came first; another one under the same id is another upload.
  const std::string& begin() const { return begin_; }

 private:
  class After;
  struct Stream {
    uint64_t number = 0;          // 0: none
    int64_t position_bytes = -1;  // where its next chunk begins; -1: no chunk yet
    Listener listener;
  };

  void OnOpened(absl::StatusOr<v1::BeginAccessResponse> response);
  void OnPlaced(const absl::Status& status);
  void OnCommitted(absl::StatusOr<v1::EndAccessResponse> response);
  void OnGivenBack();
  void Watch(absl::Duration delay);
  void OnWatch();

  // The first error ends the upload.
  void Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails it if its generation is over.
  void CheckEra() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does what has become possible.
  void Drive(After* after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndStream(const absl::Status& why, After* after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckChunk(const v1::UploadChunk& chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckCommit(uint64_t checksum) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Upload Progress() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool busy() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return opening_ || placing_ > 0 || committing_;
  }

  const TransferParts parts_;
  const std::string id_, begin_;
  const v1::BeginUpload request_;
  const absl::Duration silence_limit_;
  const std::function<void(bool)> closed_;
  const uint64_t era_;
  CallContext call_;  // of who began it
  // Of the wait for the lease: ends with the upload, and not with who began it.
  const std::shared_ptr<CancelToken> waiting_ = std::make_shared<CancelToken>();
  v1::Tensor tensor_;  // does not change once it is open

  std::mutex mutex_;
  bool watching_ ABSL_GUARDED_BY(mutex_) = true;     // from Open on; OnWatch will come
  bool opening_ ABSL_GUARDED_BY(mutex_) = true;      // the lease has not been granted yet
  bool committing_ ABSL_GUARDED_BY(mutex_) = false;  // asked for and allowed
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;     // the lease is being given back
  bool closed_now_ ABSL_GUARDED_BY(mutex_) = false;  // it has been
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  uint64_t access_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t element_bytes_ ABSL_GUARDED_BY(mutex_) = 1, total_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t accepted_bytes_ ABSL_GUARDED_BY(mutex_) =
      0;                                          // received; in place when nothing is placing_
  int placing_ ABSL_GUARDED_BY(mutex_) = 0;       // chunks in flight, of whatever stream
  Checksum checksum_ ABSL_GUARDED_BY(mutex_);     // of what was accepted
  v1::Tensor committed_ ABSL_GUARDED_BY(mutex_);  // has an id once it is
  Stream stream_ ABSL_GUARDED_BY(mutex_);
  uint64_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_ns_ ABSL_GUARDED_BY(mutex_);  // when bytes or a stream came or went
  std::vector<Reply<v1::Tensor>> committers_ ABSL_GUARDED_BY(mutex_);
  std::vector<Reply<v1::Upload>> watchers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> aborters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace agmm
