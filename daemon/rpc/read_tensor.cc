#include <array>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/silence_guard.h"
#include "daemon/rpc/tensor_streams.h"
#include "kernels/base/status.h"
#include "proto/convert/blocks.h"
#include "proto/convert/problem.h"

namespace agmm {
namespace {

// Fills one slot while the other is being sent.
class ReadTensorReactor final : public grpc::ServerWriteReactor<v1::ReadTensorResponse> {
 public:
  ReadTensorReactor(const TransferParts& parts, CallContext call,
                    grpc::CallbackServerContext* context, const v1::ReadTensorRequest& request)
      : parts_(parts),
        call_(std::move(call)),
        context_(context),
        position_(request.offset_bytes()),
        version_(request.version()),
        silence_(parts.loop, kClientSilenceLimit, [this] { OnSilence(); }) {}

  void Begin(const v1::ReadTensorRequest& asked) {
    if (absl::Status valid = Validate(asked); !valid.ok()) return OnBegun(std::move(valid));
    const v1::TensorRef& tensor = asked.tensor();
    v1::BeginAccessRequest request;
    if (tensor.ref_case() == v1::TensorRef::kName) {
      request.set_name(tensor.name());
    } else {
      request.set_tensor_id(tensor.tensor_id());
    }
    BeginAccess(parts_, call_, std::move(request),
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
    const std::shared_ptr<CancelToken> cancel = call_.cancel;
    const absl::Status gone = absl::CancelledError("the client is gone, or the daemon is stopping");
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Note(gone); });
    cancel->Cancel(gone);
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
      Note(CheckRequest());
    });
  }

  absl::Status CheckRequest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(tensor_.spec().dtype()));
    row_bytes_ = tensor_.spec().cols() * SizeOf(dtype);
    total_bytes_ = tensor_.spec().rows() * row_bytes_;
    if (position_ < 0 || position_ > total_bytes_ || position_ % SizeOf(dtype) != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a read begins at byte %d of tensor %d; it must be in [0, %d] and a multiple of %d",
          position_, tensor_.tensor_id(), total_bytes_, SizeOf(dtype)));
    }
    if (version_ == 0 || version_ == tensor_.version()) return absl::OkStatus();
    return absl::AbortedError(absl::StrFormat(
        "tensor %d is of version %d now, and the read began with version %d; read it from the "
        "beginning",
        tensor_.tensor_id(), tensor_.version(), version_));
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
      std::lock_guard lock(mutex_);
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
      if (!filling_ && !slots_[fill_].full && (first_ || position_ < total_bytes_)) {
        filling_ = true;
        *fill = &slots_[fill_];
        v1::ReadTensorResponse& response = (*fill)->response;
        response.clear_tensor();
        if (std::exchange(first_, false)) *response.mutable_tensor() = tensor_;
        const int64_t end = EndOfPiece(total_bytes_, row_bytes_, position_);
        response.set_offset_bytes(position_);
        response.mutable_data()->resize(end - position_);
        position_ = end;
      }
    }
    // Without an error a full slot is being sent.
    if (filling_ || sending_) return;
    ending_ = true;
    *end = true;
  }

  void Fill(Slot* slot) {
    v1::ReadTensorResponse& response = slot->response;
    parts_.io->Read(tensor_, response.offset_bytes(), absl::MakeSpan(*response.mutable_data()),
                    [this, slot](absl::Status status) {
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
      std::lock_guard lock(mutex_);
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
    EndAccess(parts_, call_, access_id_, AccessEnd::kUntouched,
              [this](absl::StatusOr<v1::EndAccessResponse> r) {
                // A lease that ended with its world held nobody off: what was sent may be of two
                // contents.
                Finish(ToGrpc(status_.ok() ? r.status() : status_));
              });
  }

  const TransferParts parts_;
  const CallContext call_;
  grpc::CallbackServerContext* const context_;

  std::mutex mutex_;
  std::array<Slot, 2> slots_;
  // Written under the lock; read without it once set (tensor_, access_id_) or ending (status_).
  v1::Tensor tensor_;
  uint64_t access_id_ = 0;
  absl::Status status_;
  int64_t position_ ABSL_GUARDED_BY(mutex_);  // where the next piece begins
  const uint64_t version_;                    // that is asked for; 0: any
  int64_t row_bytes_ ABSL_GUARDED_BY(mutex_) = 0, total_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool first_ ABSL_GUARDED_BY(mutex_) = true;  // nothing has been filled yet
  int fill_ ABSL_GUARDED_BY(mutex_) = 0;       // the slot to be filled next
  int send_ ABSL_GUARDED_BY(mutex_) = 0;       // the slot to be sent next
  bool opening_ ABSL_GUARDED_BY(mutex_) = true;
  bool filling_ ABSL_GUARDED_BY(mutex_) = false;
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  SilenceGuard silence_;  // first to go: it calls into the rest
};

}  // namespace

grpc::ServerWriteReactor<v1::ReadTensorResponse>* StartReadTensor(
    const TransferParts& parts, CallContext call, grpc::CallbackServerContext* context,
    const v1::ReadTensorRequest& request) {
  auto* reactor = new ReadTensorReactor(parts, std::move(call), context, request);
  reactor->Begin(request);
  return reactor;
}

}  // namespace agmm
