#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/silence_guard.h"
#include "daemon/rpc/tensor_transfer.h"
#include "proto/convert/blocks.h"
#include "proto/convert/problem.h"

namespace agmm {
namespace {

// Fills one slot while the other is being sent.
class ReadTensorReactor final : public grpc::ServerWriteReactor<v1::ReadTensorResponse> {
 public:
  ReadTensorReactor(const TransferParts& parts, CallContext call,
                    grpc::CallbackServerContext* context)
      : parts_(parts),
        call_(std::move(call)),
        context_(context),
        silence_(parts.loop, kClientSilenceLimit, [this] { OnSilence(); }) {}

  void Begin(uint64_t tensor_id) {
    BeginAccess(parts_, call_, tensor_id, /*write=*/false,
                [this](absl::StatusOr<v1::BeginAccessResponse> r) { OnBegun(std::move(r)); });
  }

  void OnWriteDone(bool ok) override {
    silence_.Touch();
    Continue([this, ok]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      sending_ = false;
      slots_[send_].full = false;
      send_ = 1 - send_;
      if (!ok) Note(absl::CancelledError("the client is gone"));
    });
  }

  void OnCancel() override {
    Continue([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      Note(absl::CancelledError("the client is gone, or the daemon is stopping"));
    });
  }
  void OnDone() override { delete this; }

 private:
  struct Slot {
    v1::ReadTensorResponse response;
    bool full = false;
  };

  void OnBegun(absl::StatusOr<v1::BeginAccessResponse> response) {
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      opening_ = false;
      if (!response.ok()) {
        Note(response.status());
        return;
      }
      access_id_ = response->access_id();
      tensor_ = std::move(*response->mutable_tensor());
      const absl::StatusOr<DType> dtype = FromProto(tensor_.spec().dtype());
      Note(dtype.status());
      if (dtype.ok()) cursor_.emplace(tensor_.spec().rows(), tensor_.spec().cols(), *dtype);
    });
  }

  // The first error is the one to tell.
  void Note(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status_.ok() && !ending_) status_ = std::move(status);
  }

  // Takes a change of state, then whatever it makes possible.
  template <typename Change>
  void Continue(Change change) {
    Slot* fill = nullptr;
    bool end = false;
    {
      absl::MutexLock lock(&mutex_);
      change();
      Drive(&fill, &end);
    }
    if (fill != nullptr) Fill(fill);
    if (end) End();
  }

  // Sends what is full; sets `fill` to a slot to be filled, or `end` when the call is to be ended,
  // once. Who is given neither may be the last to touch this object.
  void Drive(Slot** fill, bool* end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ending_ || opening_) return;
    if (status_.ok()) {
      if (!sending_ && slots_[send_].full) {
        sending_ = true;
        StartWrite(&slots_[send_].response);
      }
      if (!filling_ && !slots_[fill_].full && !cursor_->done()) {
        filling_ = true;
        *slots_[fill_].response.mutable_block() = cursor_->Next();
        *fill = &slots_[fill_];
      }
    }
    // Without an error a full slot is being sent.
    if (filling_ || sending_) return;
    ending_ = true;
    *end = true;
  }

  void Fill(Slot* slot) {
    parts_.io->Read(tensor_, slot->response.mutable_block(), [this, slot](absl::Status status) {
      silence_.Touch();
      Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        filling_ = false;
        slot->full = true;
        fill_ = 1 - fill_;
        Note(std::move(status));
      });
    });
  }

  void OnSilence() {
    {
      absl::MutexLock lock(&mutex_);
      if (!sending_) return;  // it is us who are slow
      Note(absl::DeadlineExceededError(absl::StrFormat("the client has taken nothing for %s",
                                                       absl::FormatDuration(kClientSilenceLimit))));
    }
    // Ends the write that is under way; OnWriteDone ends the rest.
    context_->TryCancel();
  }

  // Once, when nothing is pending: `status_` does not change any more.
  void End() {
    if (access_id_ == 0) {
      Finish(ToGrpc(status_));
      return;
    }
    EndAccess(parts_, call_, access_id_, false, [this](absl::StatusOr<v1::EndAccessResponse> r) {
      // A lease that ended with its world held nobody off: what was sent may be of two contents.
      Finish(ToGrpc(status_.ok() ? r.status() : status_));
    });
  }

  const TransferParts parts_;
  const CallContext call_;
  grpc::CallbackServerContext* const context_;

  absl::Mutex mutex_;
  std::array<Slot, 2> slots_;
  // Written under the lock; read without it once set (tensor_, access_id_) or ending (status_).
  v1::Tensor tensor_;
  uint64_t access_id_ = 0;
  absl::Status status_;
  std::optional<BlockCursor> cursor_ ABSL_GUARDED_BY(mutex_);  // from the answer to BeginAccess on
  int fill_ ABSL_GUARDED_BY(mutex_) = 0;  // the slot to be filled next
  int send_ ABSL_GUARDED_BY(mutex_) = 0;  // the slot to be sent next
  bool opening_ ABSL_GUARDED_BY(mutex_) = true;
  bool filling_ ABSL_GUARDED_BY(mutex_) = false;
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  SilenceGuard silence_;  // first to go: it calls into the rest
};

}  // namespace

grpc::ServerWriteReactor<v1::ReadTensorResponse>* StartReadTensor(
    const TransferParts& parts, CallContext call, grpc::CallbackServerContext* context,
    uint64_t tensor_id) {
  auto* reactor = new ReadTensorReactor(parts, std::move(call), context);
  reactor->Begin(tensor_id);
  return reactor;
}

}  // namespace agmm
