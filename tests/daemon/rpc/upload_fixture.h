// A client whose uploads a test controls.
#pragma once

#include <algorithm>
#include <deque>
#include <string>

#include "kernels/base/checksum.h"
#include "tests/daemon/rpc/tensor_service_fixture.h"
#include "tests/support/notification.h"

namespace agmm {

class Uploading : public TensorContents {
 protected:
  // Sends the messages of one upload: in the background, or one after the other.
  class Client {
   public:
    explicit Client(Uploading* test, const std::string& id = "up", uint64_t tensor = kTensor)
        : test_(test) {
      message_.mutable_begin()->set_upload_id(id);
      message_.mutable_begin()->set_tensor_id(tensor);
    }
    ~Client() {
      Cancel();
      Finish();
    }
    v1::UploadRequest Message() const { return message_; }
    v1::UploadRequest Chunk(int64_t offset, const std::string& bytes) const {
      v1::UploadRequest request = message_;
      request.mutable_chunk()->set_offset_bytes(offset);
      request.mutable_chunk()->set_data(bytes);
      return request;
    }
    v1::UploadRequest LastMessage(uint64_t checksum) const {
      v1::UploadRequest request = message_;
      request.mutable_commit()->set_checksum(checksum);
      return request;
    }

    // Sends in the background.
    void Start(const v1::UploadRequest& request) {
      Call& call = calls_.emplace_back();
      call.request = request;
      test_->stub_->async()->Upload(&call.context, &call.request, &call.response,
                                    [&call](const grpc::Status& status) {
                                      call.status = status;
                                      call.done.Notify();
                                    });
    }
    // Waits for all messages. Returns the first error, in the order of sending.
    grpc::Status Finish() {
      grpc::Status status;
      for (Call& call : calls_) {
        EXPECT_TRUE(call.done.WaitFor(kPatience));
        if (status.ok()) status = call.status;
        if (call.status.ok()) response_ = call.response;
      }
      calls_.clear();
      return status;
    }
    // Returns the number of messages that were answered with an error.
    int Errors() {
      return static_cast<int>(std::count_if(calls_.begin(), calls_.end(), [](Call& call) {
        return call.done.WaitFor(absl::ZeroDuration()) && !call.status.ok();
      }));
    }
    void Cancel() {
      for (Call& call : calls_) call.context.TryCancel();
    }

    grpc::Status Send(const v1::UploadRequest& request) {
      Start(request);
      return Finish();
    }
    // Opens the upload, or asks for its position.
    grpc::Status Ask() { return Send(message_); }
    grpc::Status Send(int64_t offset, const std::string& bytes) {
      return Send(Chunk(offset, bytes));
    }
    // Sends bytes [begin, end) of the contents in chunks.
    grpc::Status SendContents(int64_t begin, int64_t end) {
      grpc::Status status;
      for (; begin < end && status.ok(); begin += 1 << 20)
        status = Send(begin, Contents().substr(begin, std::min<int64_t>(1 << 20, end - begin)));
      return status;
    }
    grpc::Status Commit(uint64_t checksum) { return Send(LastMessage(checksum)); }

    // The response to the last message that succeeded.
    const v1::UploadResponse& response() const { return response_; }

   private:
    struct Call {
      grpc::ClientContext context;
      v1::UploadRequest request;
      v1::UploadResponse response;
      grpc::Status status;
      Notification done;
    };
    Uploading* const test_;
    v1::UploadRequest message_;
    std::deque<Call> calls_;
    v1::UploadResponse response_;
  };

  static uint64_t ChecksumOfContents() {
    Checksum checksum;
    checksum.Add(Contents());
    return checksum.value();
  }
  void Abort(const std::string& id = "up") {
    grpc::ClientContext context;
    v1::AbortUploadRequest request;
    request.set_upload_id(id);
    v1::AbortUploadResponse response;
    EXPECT_TRUE(stub_->AbortUpload(&context, request, &response).ok());
  }
  static void SendOneMiB(Client* client) { EXPECT_TRUE(client->SendContents(0, 1 << 20).ok()); }
  // Checks that the upload has ended, or never existed: a chunk in its middle is refused with the
  // reason.
  static void ExpectGone(Client* client, grpc::StatusCode why) {
    EXPECT_EQ(client->Send(1 << 20, "abcd").error_code(), why);
  }
  static void ExpectRefused(const grpc::Status& status, const std::string& what) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr(what));
  }
};

}  // namespace agmm
