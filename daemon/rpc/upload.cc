#include <array>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/silence_guard.h"
#include "daemon/rpc/tensor_streams.h"
#include "kernels/base/failpoint.h"

namespace agmm {
namespace {

// Reads messages into two slots; a slot is free again once its bytes are placed, so a slow device
// slows the client down instead of filling this process.
class UploadReactor final : public grpc::ServerReadReactor<v1::UploadRequest> {
 public:
  UploadReactor(Uploads* uploads, Loop* loop, CallContext call, v1::UploadResponse* response)
      : uploads_(uploads),
        call_(std::move(call)),
        response_(response),
        silence_(loop, kClientSilenceLimit, [this] { OnSilence(); }) {
    Continue([]() {});
  }

  void OnReadDone(bool ok) override {
    silence_.Touch();
    Slot* attach = nullptr;
    Slot* place = nullptr;
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      Slot* const slot = std::exchange(reading_, nullptr);
      if (!ok) {
        ended_ = true;
        if (!wants_commit_) Note(NoCommit());
        return;
      }
      if (!status_.ok() || ending_) return;
      Note(CheckMessage(slot->request));
      if (!status_.ok()) return;
      switch (slot->request.message_case()) {
        case v1::UploadRequest::kBegin:
          begun_ = true;
          pending_ += 3;  // Attach, and what it will tell
          attach = slot;
          break;
        case v1::UploadRequest::kChunk:
          slot->busy = true;
          pending_ += 2;  // until it is placed, and passed on
          ++placing_;
          passing_on_ = true;
          place = slot;
          break;
        default: wants_commit_ = ended_ = true; checksum_ = slot->request.commit().checksum();
      }
    });
    // What is pending keeps this alive.
    if (attach != nullptr) Attach(attach);
    if (place != nullptr) Place(place);
    if (place == nullptr) return;
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      --pending_;
      passing_on_ = false;
    });
  }

  void OnCancel() override {
    Fail(absl::CancelledError("the client is gone, or the daemon is stopping"));
  }
  void OnDone() override { delete this; }

 private:
  struct Slot {
    v1::UploadRequest request;
    bool busy = false;
  };
  enum class Next { kNothing, kCommit, kDetach, kFinish };

  absl::Status CheckMessage(const v1::UploadRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::Status valid = Validate(request); !valid.ok()) return valid;
    const bool begin = request.message_case() == v1::UploadRequest::kBegin;
    if (begin != begun_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        begun_ ? "a message begins the upload again; send chunks and a commit"
               : "the first message of an upload does not begin it; set begin");
  }
  absl::Status NoCommit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return absl::InvalidArgumentError(
        begun_ ? "the stream ended without a commit; the upload stays open for another stream"
               : "the upload ended before its first message");
  }

  void Attach(Slot* slot) {
    UploadRecord::Listener listener;
    listener.opened = [this](absl::Status status) {
      Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        --pending_;
        opened_ = true;
        Note(std::move(status));
      });
    };
    listener.ended = [this](absl::Status status) {
      Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        --pending_;
        detached_ = true;
        Note(std::move(status));
      });
    };
    absl::StatusOr<Uploads::Hold> hold =
        uploads_->Attach(call_, slot->request.begin(), std::move(listener));
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      pending_ -= hold.ok() ? 1 : 3;
      Note(hold.status());
      if (hold.ok()) hold_ = *std::move(hold);
    });
  }

  void Place(Slot* slot) {
    hold_.upload->Place(hold_.stream, slot->request.chunk(), [this, slot](absl::Status status) {
      silence_.Touch();
      Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        --pending_;
        --placing_;
        slot->busy = false;
        Note(std::move(status));
        if (AGMM_FAILPOINT("rpc.upload.reset")) {
          reset_ = true;
          Note(absl::UnavailableError("a failpoint reset the stream"));
        }
      });
    });
  }

  void Commit() {
    hold_.upload->Commit(hold_.stream, checksum_, [this](absl::StatusOr<v1::Tensor> tensor) {
      Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        --pending_;
        Note(tensor.status());
        committed_ = true;
        if (tensor.ok()) *response_->mutable_tensor() = *std::move(tensor);
      });
    });
  }

  void Fail(absl::Status status) {
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Note(std::move(status)); });
  }

  void OnSilence() {
    {
      std::lock_guard lock(mutex_);
      if (begun_) return;  // the upload itself watches
    }
    Fail(absl::DeadlineExceededError(absl::StrFormat("the client has sent nothing for %s",
                                                     absl::FormatDuration(kClientSilenceLimit))));
  }

  // The first error is the one to tell. A commit that has been answered stands.
  void Note(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status_.ok() && !committed_) status_ = std::move(status);
  }

  // Takes a change of state, then whatever it makes possible. Whoever is not told to finish may be
  // the last to touch this object.
  template <typename Change>
  void Continue(Change change) {
    Next next;
    Uploads::Hold left;
    {
      std::lock_guard lock(mutex_);
      change();
      next = Drive();
      if (next == Next::kDetach) left = hold_;
    }
    if (next == Next::kCommit) Commit();
    if (next == Next::kDetach) {
      // The upload may end the stream on another thread, and that this object, before we get there.
      while (AGMM_FAILPOINT("rpc.upload.detach_waits")) absl::SleepFor(absl::Milliseconds(1));
      left.upload->Detach(left.stream);
    }
    if (next != Next::kFinish) return;
    // As from a connection that broke, without a word of this daemon.
    if (reset_) return Finish({grpc::StatusCode::UNAVAILABLE, "reset"});
    Finish(ToGrpc(status_));
  }

  Next Drive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ending_) return Next::kNothing;
    const bool open = opened_ && hold_.upload != nullptr;
    if (status_.ok() && !ended_ && reading_ == nullptr && !passing_on_ && (open || !begun_)) {
      for (Slot& slot : slots_) {
        if (slot.busy) continue;
        reading_ = &slot;
        StartRead(&slot.request);
        break;
      }
    }
    if (status_.ok() && wants_commit_ && !asked_ && placing_ == 0) {
      asked_ = true;
      ++pending_;
      return Next::kCommit;
    }
    if (status_.ok() && !committed_) return Next::kNothing;
    if (hold_.upload != nullptr && !detaching_ && !detached_) {
      detaching_ = true;
      return Next::kDetach;
    }
    if (pending_ > 0) return Next::kNothing;
    ending_ = true;
    return Next::kFinish;
  }

  Uploads* const uploads_;
  const CallContext call_;
  v1::UploadResponse* const response_;

  std::mutex mutex_;
  std::array<Slot, 2> slots_;
  // Written under the lock; read without it once set (hold_, checksum_) or ending (status_,
  // reset_).
  Uploads::Hold hold_;
  uint64_t checksum_ = 0;
  absl::Status status_;
  bool reset_ = false;
  Slot* reading_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int pending_ ABSL_GUARDED_BY(mutex_) = 0;  // calls under way and callbacks that will come
  int placing_ ABSL_GUARDED_BY(mutex_) = 0;  // the chunks among them
  // The next message may not overtake this one.
  bool passing_on_ ABSL_GUARDED_BY(mutex_) = false;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more is read
  bool wants_commit_ ABSL_GUARDED_BY(mutex_) = false, asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool committed_ ABSL_GUARDED_BY(mutex_) = false;  // answered, that is
  bool detaching_ ABSL_GUARDED_BY(mutex_) = false, detached_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  SilenceGuard silence_;  // first to go: it calls into the rest
};

}  // namespace

grpc::ServerReadReactor<v1::UploadRequest>* StartUpload(Uploads* uploads, Loop* loop,
                                                        CallContext call,
                                                        v1::UploadResponse* response) {
  return new UploadReactor(uploads, loop, std::move(call), response);
}

}  // namespace agmm
