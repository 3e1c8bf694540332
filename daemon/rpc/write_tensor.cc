#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/silence_guard.h"
#include "daemon/rpc/tensor_transfer.h"
#include "proto/convert/blocks.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

// Reads messages into two slots; a slot is free again once its bytes are placed, so a slow device
// slows the client down instead of filling this process.
class WriteTensorReactor final : public grpc::ServerReadReactor<v1::WriteTensorRequest> {
 public:
  WriteTensorReactor(const TransferParts& parts, CallContext call,
                     v1::WriteTensorResponse* response)
      : parts_(parts),
        call_(std::move(call)),
        response_(response),
        silence_(parts.loop, kClientSilenceLimit, [this] { OnSilence(); }) {
    absl::MutexLock lock(&mutex_);
    Drive();
  }

  void OnReadDone(bool ok) override {
    silence_.Touch();
    Slot* slot;
    enum { kNothing, kBegin, kWrite, kEnd } next = kNothing;
    {
      absl::MutexLock lock(&mutex_);
      slot = std::exchange(reading_, nullptr);
      if (!ok) {
        ended_ = true;
      } else if (status_.ok() && !ending_) {
        status_ = CheckMessage(slot->request);
        if (status_.ok() && !begun_) {
          begun_ = true;
          ++pending_;
          next = kBegin;
        } else if (status_.ok()) {
          status_ = cursor_->Accept(slot->request.block());
          if (status_.ok()) {
            slot->busy = true;
            ++pending_;
            next = kWrite;
          }
        }
      }
      if (Drive()) next = kEnd;
    }
    if (next == kBegin) Begin(slot);
    if (next == kWrite) Place(slot);
    if (next == kEnd) End();
  }

  void OnCancel() override {
    Fail(absl::CancelledError("the client is gone, or the daemon is stopping"));
  }
  void OnDone() override { delete this; }

 private:
  struct Slot {
    v1::WriteTensorRequest request;
    bool busy = false;
  };

  absl::Status CheckMessage(const v1::WriteTensorRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!begun_) {
      if (request.tensor_id() != 0) return absl::OkStatus();
      return absl::InvalidArgumentError(
          "the first message of a write names no tensor; set tensor_id");
    }
    if (request.tensor_id() != 0 && request.tensor_id() != tensor_.tensor_id()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a message names tensor %d in a write of tensor %d; use a call for each",
                          request.tensor_id(), tensor_.tensor_id()));
    }
    if (request.has_block()) return absl::OkStatus();
    return absl::InvalidArgumentError("a message of a write carries no block");
  }

  void Begin(Slot* slot) {
    BeginAccess(
        parts_, call_, slot->request.tensor_id(), /*write=*/true,
        [this, slot](absl::StatusOr<v1::BeginAccessResponse> r) { OnBegun(slot, std::move(r)); });
  }

  void OnBegun(Slot* slot, absl::StatusOr<v1::BeginAccessResponse> response) {
    bool place = false, end = false;
    {
      absl::MutexLock lock(&mutex_);
      --pending_;
      if (response.ok()) {
        access_id_ = response->access_id();
        tensor_ = std::move(*response->mutable_tensor());
      }
      if (status_.ok()) status_ = response.ok() ? OpenCursor() : response.status();
      if (status_.ok() && slot->request.has_block()) {
        status_ = cursor_->Accept(slot->request.block());
        place = status_.ok();
      }
      if (place) {
        slot->busy = true;
        ++pending_;
      }
      end = Drive();
    }
    if (place) Place(slot);
    if (end) End();
  }

  absl::Status OpenCursor() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::StatusOr<DType> dtype = FromProto(tensor_.spec().dtype());
    if (!dtype.ok()) return dtype.status();
    cursor_.emplace(tensor_.spec().rows(), tensor_.spec().cols(), *dtype);
    return absl::OkStatus();
  }

  void Place(Slot* slot) {
    parts_.io->Write(tensor_, slot->request.block(), era_, [this, slot](absl::Status placed) {
      silence_.Touch();
      bool end;
      {
        absl::MutexLock lock(&mutex_);
        --pending_;
        slot->busy = false;
        if (status_.ok()) status_ = std::move(placed);
        end = Drive();
      }
      if (end) End();
    });
  }

  void Fail(absl::Status status) {
    bool end;
    {
      absl::MutexLock lock(&mutex_);
      if (status_.ok()) status_ = std::move(status);
      end = Drive();
    }
    if (end) End();
  }

  void OnSilence() {
    {
      absl::MutexLock lock(&mutex_);
      if (reading_ == nullptr || pending_ > 0) return;  // it is us who are slow
    }
    Fail(absl::DeadlineExceededError(absl::StrFormat("the client has sent nothing for %s",
                                                     absl::FormatDuration(kClientSilenceLimit))));
  }

  // Starts the next read if there is room, or returns true once the call is to be ended: by the
  // caller, with End(), after it has let go of the lock. Whoever returns false may be the last to
  // touch this object.
  bool Drive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ending_) return false;
    const bool opening = begun_ && !cursor_.has_value();
    if (status_.ok() && !ended_ && reading_ == nullptr && !opening) {
      for (Slot& slot : slots_) {
        if (slot.busy) continue;
        reading_ = &slot;
        slot.request.Clear();
        StartRead(&slot.request);
        return false;
      }
    }
    if (pending_ > 0 || (status_.ok() && !ended_)) return false;
    ending_ = true;
    if (status_.ok() && !begun_) {
      status_ = absl::InvalidArgumentError("the write ended before its first message");
    } else if (status_.ok() && !cursor_->done()) {
      status_ = absl::InvalidArgumentError(
          absl::StrFormat("the write ended after %d of %d rows; the tensor is left empty",
                          cursor_->rows_passed(), tensor_.spec().rows()));
    }
    return true;
  }

  // Once, when nothing is pending: `status_` does not change any more.
  void End() {
    if (access_id_ == 0) {
      Finish(ToGrpc(status_));
      return;
    }
    EndAccess(parts_, call_, access_id_, status_.ok(),
              [this](absl::StatusOr<v1::EndAccessResponse> r) {
                // After a failure the access is over either way; the first error is the one to
                // tell.
                if (status_.ok() && r.ok())
                  *response_->mutable_tensor() = std::move(*r->mutable_tensor());
                Finish(ToGrpc(status_.ok() ? r.status() : status_));
              });
  }

  const TransferParts parts_;
  const uint64_t era_ = parts_.io->era();
  const CallContext call_;
  v1::WriteTensorResponse* const response_;

  absl::Mutex mutex_;
  std::array<Slot, 2> slots_;
  // Written under the lock; read without it once set (tensor_, access_id_) or ending (status_).
  v1::Tensor tensor_;
  uint64_t access_id_ = 0;
  absl::Status status_;
  std::optional<BlockCursor> cursor_ ABSL_GUARDED_BY(mutex_);  // from the answer to BeginAccess on
  Slot* reading_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int pending_ ABSL_GUARDED_BY(mutex_) = 0;  // callbacks that will come: BeginAccess, writes
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the client has sent all, or has gone
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  SilenceGuard silence_;  // first to go: it calls into the rest
};

}  // namespace

grpc::ServerReadReactor<v1::WriteTensorRequest>* StartWriteTensor(
    const TransferParts& parts, CallContext call, v1::WriteTensorResponse* response) {
  return new WriteTensorReactor(parts, std::move(call), response);
}

}  // namespace agmm
