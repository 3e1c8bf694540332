#include "client/tensor_transfer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "kernels/base/checksum.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "proto/convert/blocks.h"
#include "proto/convert/problem.h"

namespace agmm {
namespace {

constexpr absl::Duration kAbortCall = absl::Seconds(2);

// As Connection::WaitToRetry.
bool Reconnect(Connection* connection, absl::Duration delay, const Progress& progress) {
  if (progress.reconnecting) progress.reconnecting();
  return connection->WaitToRetry(delay);
}

class Uploader {
 public:
  Uploader(Connection* connection, v1::BeginUpload begin, int64_t total_bytes, const ReadFn& read,
           const Progress& progress, absl::Time deadline, const std::string& sequencer)
      : connection_(connection),
        deadline_(deadline),
        sequencer_(sequencer),
        begin_(std::move(begin)),
        total_bytes_(total_bytes),
        read_(read),
        progress_(progress) {
    StartRetries();
  }

  absl::StatusOr<v1::Tensor> Run() {
    while (true) {
      std::optional<absl::Duration> delay;
      absl::StatusOr<v1::Tensor> tensor = Send(&delay);
      if (!tensor.ok() && delay.has_value() && Reconnect(connection_, *delay, progress_)) {
        const absl::StatusOr<v1::Upload> upload = connection_->GetUpload(begin_.upload_id());
        if (upload.ok() && upload->has_tensor()) return upload->tensor();
        if (upload.ok() || absl::IsNotFound(upload.status())) {
          position_ = upload.ok() ? upload->committed_bytes() : 0;
          continue;
        }
        tensor = upload.status();
      }
      // Nobody will go on: the space need not wait for the silence to be noticed.
      if (!tensor.ok() && !absl::IsUnavailable(tensor.status()))
        connection_->AbortUpload(begin_.upload_id(), kAbortCall).IgnoreError();
      return tensor;
    }
  }

 private:
  void StartRetries() {
    if (begin_.has_put())
      retry_.emplace(connection_, deadline_);
    else
      retry_.emplace(connection_, deadline_, sequencer_);
  }

  // One stream, from position_ on. Sets `delay` where it broke and there may be another.
  absl::StatusOr<v1::Tensor> Send(std::optional<absl::Duration>* delay) {
    Connection::Call call(connection_, deadline_, retry_->sequencer());
    v1::UploadResponse response;
    const std::unique_ptr<grpc::ClientWriter<v1::UploadRequest>> stream =
        connection_->tensors()->Upload(call.context(), &response);
    const absl::Status sent = SendAll(stream.get());
    if (sent.ok())
      stream->WritesDone();
    else
      call.context()->TryCancel();
    const absl::Status status = call.Convert(stream->Finish());
    if (!sent.ok()) return sent;
    if (status.ok()) return std::move(*response.mutable_tensor());
    *delay = retry_->Next(call);
    return status;
  }

  // Stops when the stream breaks, whose status then says why.
  absl::Status SendAll(grpc::ClientWriter<v1::UploadRequest>* stream) {
    v1::UploadRequest request;
    *request.mutable_begin() = begin_;
    if (!stream->Write(request)) return absl::OkStatus();
    while (position_ < total_bytes_) {
      v1::UploadChunk& chunk = *request.mutable_chunk();
      const int64_t size = std::min(kPieceBytes, total_bytes_ - position_);
      chunk.set_offset_bytes(position_);
      chunk.mutable_data()->resize(size);
      AGMM_RETURN_IF_ERROR(read_(position_, size, chunk.mutable_data()->data()));
      // What is sent again counts once.
      const int64_t known = std::clamp<int64_t>(hashed_bytes_ - position_, 0, size);
      checksum_.Add(absl::string_view(chunk.data()).substr(known));
      hashed_bytes_ = std::max(hashed_bytes_, position_ + size);
      if (!stream->Write(request)) return absl::OkStatus();
      position_ += size;
      if (position_ == hashed_bytes_) StartRetries();
      progress_.moved(position_);
    }
    request.mutable_commit()->set_checksum(checksum_.value());
    stream->Write(request);
    return absl::OkStatus();
  }

  Connection* const connection_;
  const absl::Time deadline_;
  const std::string sequencer_;
  const v1::BeginUpload begin_;
  const int64_t total_bytes_;
  const ReadFn& read_;
  const Progress& progress_;
  Checksum checksum_;
  int64_t hashed_bytes_ = 0;
  int64_t position_ = 0;
  std::optional<Connection::Retry> retry_;  // since the last progress
};

class Downloader {
 public:
  Downloader(Connection* connection, const v1::TensorRef& tensor, const WriteFn& write,
             const Progress& progress, absl::Time deadline, const std::string& sequencer)
      : connection_(connection),
        deadline_(deadline),
        sequencer_(sequencer),
        write_(write),
        progress_(progress) {
    *request_.mutable_tensor() = tensor;
    StartRetries();
  }

  absl::StatusOr<v1::Tensor> Run() {
    std::optional<absl::Duration> delay;
    absl::Status status = Receive(&delay);
    while (!status.ok() && delay.has_value() && Reconnect(connection_, *delay, progress_))
      status = Receive(&delay);
    if (!status.ok()) return status;
    if (position_ == total_bytes_) return tensor_;
    return absl::InternalError(
        absl::StrFormat("the daemon sent %d of %d bytes", position_, total_bytes_));
  }

 private:
  void StartRetries() {
    if (request_.tensor().has_tensor_id())
      retry_.emplace(connection_, deadline_, sequencer_);
    else
      retry_.emplace(connection_, deadline_);
  }

  // One stream, from position_ on. Sets `delay` where it broke and there may be another.
  absl::Status Receive(std::optional<absl::Duration>* delay) {
    Connection::Call call(connection_, deadline_, retry_->sequencer());
    request_.set_offset_bytes(position_);
    const std::unique_ptr<grpc::ClientReader<v1::ReadTensorResponse>> stream =
        connection_->tensors()->ReadTensor(call.context(), request_);
    absl::Status taken;
    while (taken.ok() && stream->Read(&response_)) taken = Take(response_);
    if (!taken.ok()) call.context()->TryCancel();
    const absl::Status status = call.Convert(stream->Finish());
    *delay = taken.ok() ? retry_->Next(call) : std::nullopt;
    return taken.ok() ? status : taken;
  }

  absl::Status Take(const v1::ReadTensorResponse& response) {
    if (!begun_) AGMM_RETURN_IF_ERROR(Meet(response.tensor()));
    const int64_t size = static_cast<int64_t>(response.data().size());
    if (response.offset_bytes() != position_ || size > total_bytes_ - position_) {
      return absl::InternalError(
          absl::StrFormat("the daemon's answer makes no sense: %d bytes from byte %d, where byte "
                          "%d of %d comes next",
                          size, response.offset_bytes(), position_, total_bytes_));
    }
    if (size == 0) return absl::OkStatus();
    AGMM_RETURN_IF_ERROR(write_(tensor_, position_, response.data()));
    position_ += size;
    StartRetries();
    progress_.moved(position_);
    return absl::OkStatus();
  }

  // From now on it is this tensor in this version, whatever becomes of the name.
  absl::Status Meet(const v1::Tensor& tensor) {
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(tensor.spec().dtype()));
    tensor_ = tensor;
    total_bytes_ = tensor.spec().rows() * tensor.spec().cols() * SizeOf(dtype);
    request_.mutable_tensor()->set_tensor_id(tensor.tensor_id());
    sequencer_ = tensor.sequencer();
    request_.set_version(tensor.version());
    begun_ = true;
    StartRetries();
    return absl::OkStatus();
  }

  Connection* const connection_;
  const absl::Time deadline_;
  std::string sequencer_;
  const WriteFn& write_;
  const Progress& progress_;
  v1::ReadTensorRequest request_;
  v1::ReadTensorResponse response_;
  v1::Tensor tensor_;
  bool begun_ = false;
  int64_t total_bytes_ = 0, position_ = 0;
  std::optional<Connection::Retry> retry_;  // since the last progress
};

}  // namespace

absl::StatusOr<v1::Tensor> Upload(Connection* connection, v1::BeginUpload begin,
                                  int64_t total_bytes, const ReadFn& read, const Progress& progress,
                                  absl::Time deadline, const std::string& sequencer) {
  if (begin.upload_id().empty()) begin.set_upload_id(RandomHex(kIdBytes));
  return Uploader(connection, std::move(begin), total_bytes, read, progress, deadline, sequencer)
      .Run();
}

absl::StatusOr<v1::Tensor> Download(Connection* connection, const v1::TensorRef& tensor,
                                    const WriteFn& write, const Progress& progress,
                                    absl::Time deadline, const std::string& sequencer) {
  return Downloader(connection, tensor, write, progress, deadline, sequencer).Run();
}

}  // namespace agmm
