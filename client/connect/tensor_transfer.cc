#include "client/connect/tensor_transfer.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/connect/connection.h"
#include "kernels/base/checksum.h"
#include "kernels/base/deadline.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "proto/convert/blocks.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

constexpr absl::Duration kAbortCall = absl::Seconds(2);

// Like Connection::WaitToRetry. `lost` says that the connection broke.
bool Reconnect(Connection* connection, absl::Duration delay, bool lost, const Progress& progress,
               const std::stop_token& stop) {
  if (lost && progress.reconnecting) progress.reconnecting();
  return connection->WaitToRetry(delay, /*interruptible=*/true, stop);
}

// Messages of an upload in flight: enough to fill the connection while the next one is prepared.
constexpr size_t kInFlight = 3;

class Uploader {
 public:
  Uploader(Connection* connection, v1::BeginUpload begin, int64_t total_bytes, const ReadFn& read,
           const Progress& progress, const TransferLimits& limits, const std::string& sequencer)
      : connection_(connection),
        limits_(limits),
        begin_(std::move(begin)),
        total_bytes_(total_bytes),
        read_(read),
        progress_(progress),
        retry_(connection, limits.deadline,
               begin_.has_put() ? std::nullopt : std::optional(sequencer)) {}

  absl::StatusOr<v1::Tensor> Run() {
    absl::Status status = SendAll();
    while (!status.ok() && delay_.has_value() &&
           Reconnect(connection_, *delay_, lost_, progress_, limits_.stop)) {
      status = AskPosition();
      if (status.ok() && !tensor_.has_value()) status = SendAll();
    }
    if (status.ok()) return *std::move(tensor_);
    // Frees the space before the daemon's own timeout does.
    if (!absl::IsUnavailable(status))
      connection_->AbortUpload(begin_.upload_id(), kAbortCall).IgnoreError();
    return status;
  }

 private:
  struct Messages {
    v1::UploadRequest request;
    v1::UploadResponse response;
  };
  // One message of the upload. The calls are used in turn.
  struct UploadCall {
    std::shared_ptr<Messages> messages = std::make_shared<Messages>();
    std::optional<Connection::Call> call;  // from Start to Await
  };

  // Asks where to continue after a break, because bytes in flight may have arrived.
  absl::Status AskPosition() {
    UploadCall& upload = calls_[0];
    upload.messages->request.clear_chunk();
    upload.messages->request.clear_commit();
    Start(&upload);
    AGMM_RETURN_IF_ERROR(Await(&upload));
    position_ = upload.messages->response.committed_bytes();
    return absl::OkStatus();
  }

  // Sends everything from position_ on, and the commit.
  absl::Status SendAll() {
    absl::Status status;
    bool opened = false, committed = false;
    for (size_t next = 0; status.ok() && !committed; ++next) {
      UploadCall& upload = calls_[next % kInFlight];
      status = Await(&upload);
      if (status.ok()) status = Fill(&upload);
      if (!status.ok()) break;
      committed = upload.messages->request.has_commit();
      Start(&upload);
      // The first message waits until the tensor is free, and the others wait for the first.
      if (!std::exchange(opened, true)) status = Await(&upload);
      for (size_t i = 1; committed && status.ok() && i <= kInFlight; ++i)
        status = Await(&calls_[(next + i) % kInFlight]);
    }
    DropAll();
    if (!status.ok() || tensor_.has_value()) return status;
    return absl::InternalError("the daemon answered a commit without the tensor");
  }

  // Fills in the message that begins at position_.
  absl::Status Fill(UploadCall* upload) {
    const int64_t size = std::min(kPieceBytes, total_bytes_ - position_);
    v1::UploadRequest& request = upload->messages->request;
    request.clear_commit();
    // The callback may take long, and no call is in progress before the first one.
    if (limits_.stop.stop_requested()) return StoppedError();
    if (size > 0) {
      v1::UploadChunk& chunk = *request.mutable_chunk();
      chunk.set_offset_bytes(position_);
      chunk.mutable_data()->resize(size);
      AGMM_RETURN_IF_ERROR(read_(position_, size, chunk.mutable_data()->data()));
      // Bytes that are sent again count once.
      const int64_t known = std::clamp<int64_t>(hashed_bytes_ - position_, 0, size);
      checksum_.Add(absl::string_view(chunk.data()).substr(known));
      hashed_bytes_ = std::max(hashed_bytes_, position_ + size);
      position_ += size;
    } else {
      request.clear_chunk();
    }
    if (position_ == total_bytes_) request.mutable_commit()->set_checksum(checksum_.value());
    return absl::OkStatus();
  }

  void Start(UploadCall* upload) {
    Messages& messages = *upload->messages;
    *messages.request.mutable_begin() = begin_;
    upload->call.emplace(connection_, limits_.deadline, retry_.sequencer(),
                         /*interruptible=*/true, limits_.stop);
    connection_->contents()->async()->Upload(upload->call->context(), &messages.request,
                                             &messages.response,
                                             upload->call->OnEnd(upload->messages));
  }

  // Waits for the call's answer, if its message is on its way. Sets delay_ where another attempt
  // may succeed: the connection broke, or the daemon was out of memory for transfers.
  absl::Status Await(UploadCall* upload) {
    if (!upload->call.has_value()) return absl::OkStatus();
    const absl::Status status = upload->call->Convert(upload->call->Await());
    delay_ = status.ok() ? std::nullopt : retry_.Next(*upload->call);
    lost_ = upload->call->lost();
    Release(upload);
    if (!status.ok()) return status;
    const Messages& messages = *upload->messages;
    if (messages.response.has_tensor()) tensor_ = messages.response.tensor();
    if (messages.request.has_chunk()) {
      const v1::UploadChunk& chunk = messages.request.chunk();
      const int64_t end = chunk.offset_bytes() + static_cast<int64_t>(chunk.data().size());
      if (end > placed_bytes_) retry_.Restart();
      placed_bytes_ = std::max(placed_bytes_, end);
      progress_.moved(end);
    }
    return absl::OkStatus();
  }

  // Cancels the calls in progress and drops their answers.
  void DropAll() {
    for (UploadCall& upload : calls_)
      if (upload.call.has_value()) upload.call->Cancel();
    for (UploadCall& upload : calls_) {
      if (!upload.call.has_value()) continue;
      upload.call->Await();
      Release(&upload);
    }
  }

  // After the wait for the call. The messages of one that has not ended stay gRPC's.
  void Release(UploadCall* upload) {
    if (!upload->call->ended()) upload->messages = std::make_shared<Messages>();
    upload->call.reset();
  }

  Connection* const connection_;
  const TransferLimits limits_;
  const v1::BeginUpload begin_;
  const int64_t total_bytes_;
  const ReadFn& read_;
  const Progress& progress_;
  Checksum checksum_;
  int64_t hashed_bytes_ = 0;             // in order
  int64_t position_ = 0;                 // of the next chunk
  int64_t placed_bytes_ = 0;             // the most of any attempt
  Connection::Retry retry_;              // since the last progress
  bool lost_ = false;                    // the last call
  std::optional<absl::Duration> delay_;  // until the next attempt; absent: the error is final
  std::optional<v1::Tensor> tensor_;     // once committed
  std::array<UploadCall, kInFlight> calls_;
};

}  // namespace

absl::StatusOr<v1::Tensor> Upload(Connection* connection, v1::BeginUpload begin,
                                  int64_t total_bytes, const ReadFn& read, const Progress& progress,
                                  const TransferLimits& limits, const std::string& sequencer) {
  AGMM_RETURN_IF_ERROR(CheckReadable(begin.put()));
  if (begin.upload_id().empty()) begin.set_upload_id(RandomHex(kIdBytes));
  return Uploader(connection, std::move(begin), total_bytes, read, progress, limits, sequencer)
      .Run();
}

absl::StatusOr<v1::Tensor> Download(Connection* connection, const v1::TensorRef& tensor,
                                    const WriteFn& write, const Progress& progress,
                                    const TransferLimits& limits, const std::string& sequencer) {
  AGMM_RETURN_IF_ERROR(CheckReadable(tensor));
  v1::ReadTensorRequest request;
  *request.mutable_tensor() = tensor;
  // Since the last progress.
  Connection::Retry retry(connection, limits.deadline,
                          tensor.has_tensor_id() ? std::optional(sequencer) : std::nullopt);
  std::optional<v1::Tensor> found;
  int64_t total_bytes = 0, position = 0;
  const auto take = [&](const v1::ReadTensorResponse& response) -> absl::Status {
    if (!found.has_value()) {
      found = response.tensor();
      AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(found->spec().dtype()));
      total_bytes = found->spec().rows() * found->spec().cols() * SizeOf(dtype);
      // Later streams read this tensor in this version, whatever happens to the name.
      request.mutable_tensor()->set_tensor_id(found->tensor_id());
      request.set_version(found->version());
      retry = {connection, limits.deadline, found->sequencer()};
    }
    const int64_t size = static_cast<int64_t>(response.data().size());
    if (response.offset_bytes() != position || size > total_bytes - position) {
      return absl::InternalError(absl::StrFormat(
          "the daemon sent %d bytes from byte %d, where byte %d of %d comes next; client "
          "and daemon versions differ",
          size, response.offset_bytes(), position, total_bytes));
    }
    if (size == 0) return absl::OkStatus();
    if (limits.stop.stop_requested()) return StoppedError();
    AGMM_RETURN_IF_ERROR(write(*found, position, response.data()));
    position += size;
    retry.Restart();
    progress.moved(position);
    return absl::OkStatus();
  };
  v1::ReadTensorResponse response;
  while (true) {
    Connection::Call call(connection, limits.deadline, retry.sequencer(), /*interruptible=*/true,
                          limits.stop);
    request.set_offset_bytes(position);
    const auto stream = connection->contents()->ReadTensor(call.context(), request);
    absl::Status taken;
    while (taken.ok() && stream->Read(&response)) taken = take(response);
    if (!taken.ok()) call.context()->TryCancel();
    const absl::Status status = call.Convert(stream->Finish());
    if (!taken.ok()) return taken;
    if (status.ok()) break;
    const std::optional<absl::Duration> delay = retry.Next(call);
    if (!delay.has_value() || !Reconnect(connection, *delay, call.lost(), progress, limits.stop))
      return status;
  }
  if (found.has_value() && position == total_bytes) return *std::move(found);
  return absl::InternalError(absl::StrFormat(
      "the daemon sent %d of %d bytes; client and daemon versions differ", position, total_bytes));
}

}  // namespace agmm
