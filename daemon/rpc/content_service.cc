// Contents of tensors, on every node.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "daemon/link/stream.h"
#include "daemon/rpc/method_service.h"
#include "daemon/rpc/services.h"
#include "daemon/rpc/validate.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "proto/convert/blocks.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

grpc::ServerUnaryReactor* Upload(Uploads* uploads, grpc::CallbackServerContext* context,
                                 const v1::UploadRequest* request, v1::UploadResponse* response) {
  const auto write = [uploads](const CallContext& call, const v1::UploadRequest& request,
                               Reply<v1::UploadResponse> reply) {
    // Moved without a copy, because the bytes are written even if the client leaves, and gRPC frees
    // the request with the call.
    auto message = std::make_shared<v1::UploadRequest>();
    message->Swap(const_cast<v1::UploadRequest*>(&request));
    uploads->Write(call, std::move(message), std::move(reply));
  };
  if (request->has_chunk() && AGMM_FAILPOINT("rpc.upload.reset")) {
    // The bytes arrive and the answer is lost, as if the connection broke.
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    write(CallContextOf(context), *request, [reactor](const auto&) {
      reactor->Finish({grpc::StatusCode::UNAVAILABLE, "reset"});
    });
    return reactor;
  }
  return AnswerUnary(context, request, response, write);
}

// Messages in memory for one reader: one is filled while the other is sent.
constexpr int kBuffers = 2;

// Sends the contents in pieces, under a read lease.
class ReadTensorStream final : public WriteStream<v1::ReadTensorResponse> {
 public:
  ReadTensorStream(const TransferParts& parts, grpc::CallbackServerContext* context,
                   const v1::ReadTensorRequest& request)
      : ServerStream(context),
        parts_(parts),
        request_(request),
        position_(request.offset_bytes()),
        buffers_(kBuffers) {}

 private:
  // kIdle: no piece is being read. kEnding: the lease is returned, or will be when the pending
  // piece or lease arrives.
  enum class Phase { kOpening, kIdle, kReading, kEnding };

  void OnStart() override {
    WatchSilence(parts_.loop, kClientSilenceLimit);
    if (absl::Status valid = Validate(request_); !valid.ok()) return OnBegun(std::move(valid));
    v1::BeginLeaseRequest request;
    if (request_.tensor().ref_case() == v1::TensorRef::kName) {
      request.set_name(request_.tensor().name());
    } else {
      request.set_tensor_id(request_.tensor().tensor_id());
    }
    HeldLease::Begin(parts_, call_, std::move(request),
                     [self = Self<ReadTensorStream>()](absl::StatusOr<HeldLease> begun) {
                       self->OnBegun(std::move(begun));
                     });
  }
  void OnSent(v1::ReadTensorResponse sent) override {
    {
      std::lock_guard lock(mutex_);
      buffers_.push_back(std::move(sent));
    }
    ReadNext();
  }
  void OnBroken(absl::Status why) override { Stop(std::move(why)); }

  void OnBegun(absl::StatusOr<HeldLease> begun) {
    absl::Status status = begun.status();
    if (begun.ok()) {
      lease_ = *std::move(begun);
      status = CheckRequest();
    }
    if (status.ok()) {
      absl::StatusOr<std::shared_ptr<void>> memory =
          TakeMemory(parts_, call_.principal, static_cast<int64_t>(buffers_.size()) * kPieceBytes);
      if (memory.ok()) memory_ = *std::move(memory);
      status = memory.status();
    }
    if (!MayGoOn(Phase::kOpening)) return;
    if (!status.ok()) return Stop(std::move(status));
    ReadNext();
  }

  absl::Status CheckRequest() {
    const v1::Tensor& tensor = lease_.tensor();
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(tensor.spec().dtype()));
    row_bytes_ = tensor.spec().cols() * SizeOf(dtype);
    total_bytes_ = tensor.spec().rows() * row_bytes_;
    if (position_ < 0 || position_ > total_bytes_ || position_ % SizeOf(dtype) != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a read begins at byte %d of tensor %d; it must be in [0, %d] and a multiple of %d",
          position_, tensor.tensor_id(), total_bytes_, SizeOf(dtype)));
    }
    if (request_.version() == 0 || request_.version() == tensor.version()) return absl::OkStatus();
    return absl::AbortedError(absl::StrFormat(
        "tensor %d is of version %d now, and the read began with version %d; read it from the "
        "beginning",
        tensor.tensor_id(), tensor.version(), request_.version()));
  }

  // Reads the next piece if no other is being read and a buffer is free.
  void ReadNext() {
    {
      std::lock_guard lock(mutex_);
      if (phase_ != Phase::kIdle || buffers_.empty()) return;
      phase_ = Phase::kReading;
      piece_ = std::move(buffers_.back());
      buffers_.pop_back();
    }
    piece_.clear_tensor();
    if (position_ == request_.offset_bytes()) *piece_.mutable_tensor() = lease_.tensor();
    piece_.set_offset_bytes(position_);
    const int64_t end = EndOfPiece(total_bytes_, row_bytes_, position_);
    piece_.mutable_data()->resize(end - position_);
    position_ = end;
    parts_.io->Read(lease_.tensor(), piece_.offset_bytes(), absl::MakeSpan(*piece_.mutable_data()),
                    lease_.local_generation(),
                    [self = Self<ReadTensorStream>()](absl::Status status) {
                      self->OnRead(std::move(status));
                    });
  }

  void OnRead(absl::Status status) {
    const bool last = position_ == total_bytes_;
    if (status.ok()) Send(std::move(piece_));
    if (!MayGoOn(Phase::kReading)) return;
    if (!status.ok() || last) return Stop(std::move(status));
    ReadNext();
  }

  // Leaves `phase` for kIdle; returns false if the stream was stopped in the meantime.
  bool MayGoOn(Phase phase) {
    {
      std::lock_guard lock(mutex_);
      if (phase_ == phase) {
        phase_ = Phase::kIdle;
        return true;
      }
    }
    ReturnLease();
    return false;
  }

  // The first reason counts.
  void Stop(absl::Status why) {
    {
      std::lock_guard lock(mutex_);
      if (phase_ == Phase::kEnding) return;
      end_ = std::move(why);
      // The pending lease or piece continues from here.
      if (std::exchange(phase_, Phase::kEnding) != Phase::kIdle) return;
    }
    ReturnLease();
  }

  // Called once, when nothing is pending.
  void ReturnLease() {
    if (!lease_.held()) return End(end_);
    lease_.Return(LeaseEnd::kUntouched, [self = Self<ReadTensorStream>()](
                                            const absl::StatusOr<v1::EndLeaseResponse>& ended) {
      // A lease that ended with its generation did not exclude writers: the sent bytes may mix
      // two versions.
      self->End(self->end_.ok() ? ended.status() : self->end_);
    });
  }

  const TransferParts parts_;
  const v1::ReadTensorRequest request_;
  // Written only by OnBegun.
  HeldLease lease_;
  int64_t row_bytes_ = 0, total_bytes_ = 0;
  std::shared_ptr<void> memory_;  // of the pieces
  // Touched in kReading, or during the change to it.
  int64_t position_;  // where the next piece begins
  v1::ReadTensorResponse piece_;

  std::mutex mutex_;  // of all below
  Phase phase_ = Phase::kOpening;
  std::vector<v1::ReadTensorResponse> buffers_;  // free ones
  absl::Status end_;                             // from kEnding on
};

// Takes the messages of one client, and sends the answers of its mapping, which decides when and
// how the call ends.
class MapTensorStream final : public BidiStream<v1::MapTensorRequest, v1::MapTensorResponse> {
 public:
  MapTensorStream(Mappings* mappings, grpc::CallbackServerContext* context)
      : BidiStream(context),
        mappings_(mappings),
        local_(absl::StartsWith(context->peer(), "unix:")) {}

 private:
  void OnStart() override {
    ServedMapping::Client client;
    client.send = [self = Self<MapTensorStream>()](v1::MapTensorResponse response) {
      self->Send(std::move(response));
      // The next message is read now, because it may use this answer.
      self->Read();
    };
    client.end = [self = Self<MapTensorStream>()](absl::Status why) { self->End(std::move(why)); };
    absl::StatusOr<std::shared_ptr<ServedMapping>> mapping = mappings_->Create(std::move(client));
    if (!mapping.ok()) return End(mapping.status());
    mapping_ = *std::move(mapping);
    WatchSilence(mappings_->loop(), mappings_->silence());
    Read();
  }

  void OnMessage(v1::MapTensorRequest* request) override {
    if (absl::Status valid = Check(*request); !valid.ok()) return mapping_->End(std::move(valid));
    if (request->has_commit()) return mapping_->ReturnLease(LeaseEnd::kCommitted);
    if (request->has_release()) return mapping_->ReturnLease(LeaseEnd::kUntouched);
    if (request->has_renew()) return mapping_->Renew();
    begun_ = true;
    mapping_->Begin(call_, request->begin());
  }
  void OnHalfClose() override {
    mapping_->End(begun_
                      ? absl::OkStatus()
                      : absl::InvalidArgumentError("the mapping ended before its first message"));
  }
  void OnBroken(absl::Status why) override {
    if (mapping_ != nullptr) mapping_->End(std::move(why));
  }
  void OnSilence(absl::Duration limit) override {
    if (begun_) return;
    mapping_->End(absl::DeadlineExceededError(absl::StrFormat(
        "the client has not begun its mapping for %s", absl::FormatDuration(limit))));
  }

  absl::Status Check(const v1::MapTensorRequest& request) const {
    AGMM_RETURN_IF_ERROR(Validate(request));
    if (request.has_begin() && begun_)
      return absl::InvalidArgumentError("a message begins the mapping again");
    if (!request.has_begin() && !begun_)
      return absl::InvalidArgumentError("the first message of a mapping does not begin it");
    if (request.has_commit() && !mapping_->writable()) {
      return absl::InvalidArgumentError(
          "a read-only mapping cannot be committed; begin a writable one");
    }
    if (request.has_begin() && !local_) {
      return absl::FailedPreconditionError(
          "only clients on the same host can map shards; connect over the daemon's unix socket");
    }
    return absl::OkStatus();
  }

  Mappings* const mappings_;
  const bool local_;
  std::shared_ptr<ServedMapping> mapping_;  // from OnStart on; null if it was refused
  std::atomic<bool> begun_ = false;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeContentService(const TransferParts& parts, Uploads* uploads,
                                                  Mappings* mappings) {
  auto service = std::make_unique<MethodService>("agmm.v1.ContentService");
  service->AddReactor<v1::UploadRequest, v1::UploadResponse>(std::bind_front(Upload, uploads));
  service->AddUnary<v1::AbortUploadRequest, v1::AbortUploadResponse>(
      [uploads](const auto&, const auto& request, auto reply) {
        uploads->Abort(request, std::move(reply));
      });
  service->AddWriteStream<v1::ReadTensorRequest, v1::ReadTensorResponse>(
      [parts](auto* context, auto* request) {
        return StartStream<ReadTensorStream>(parts, context, *request);
      });
  service->AddBidiStream<v1::MapTensorRequest, v1::MapTensorResponse>(
      [mappings](auto* context) { return StartStream<MapTensorStream>(mappings, context); });
  return service;
}

}  // namespace agmm
