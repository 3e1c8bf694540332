// A client that uploads as a test says.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "kernels/base/checksum.h"
#include "tests/daemon/tensor_service_fixture.h"

namespace agmm {

class Uploading : public TensorContents {
 protected:
  // One stream of an upload, from the client's side.
  struct Client {
    explicit Client(Uploading* test) { stream = test->stub_->Upload(&context, &response); }
    bool Begin(const std::string& id = "up", uint64_t tensor = kTensor) {
      v1::UploadRequest request;
      request.mutable_begin()->set_upload_id(id);
      request.mutable_begin()->set_tensor_id(tensor);
      return stream->Write(request);
    }
    bool Send(int64_t offset, const std::string& bytes) {
      v1::UploadRequest request;
      request.mutable_chunk()->set_offset_bytes(offset);
      request.mutable_chunk()->set_data(bytes);
      return stream->Write(request);
    }
    // Bytes [begin, end) of the contents, in chunks.
    void SendContents(int64_t begin, int64_t end) {
      for (; begin < end; begin += 1 << 20)
        Send(begin, Contents().substr(begin, std::min<int64_t>(1 << 20, end - begin)));
    }
    grpc::Status Commit(uint64_t checksum) {
      v1::UploadRequest request;
      request.mutable_commit()->set_checksum(checksum);
      stream->Write(request);
      return stream->Finish();
    }
    grpc::ClientContext context;
    v1::UploadResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::UploadRequest>> stream;
  };

  static uint64_t ChecksumOfContents() {
    Checksum checksum;
    checksum.Add(Contents());
    return checksum.value();
  }
  // How far the upload is; once `bytes` are in place, or at once.
  grpc::Status Get(v1::Upload* upload, const std::string& id = "up") {
    grpc::ClientContext context;
    v1::GetUploadRequest request;
    request.set_upload_id(id);
    return stub_->GetUpload(&context, request, upload);
  }
  void AwaitBytes(int64_t bytes) {
    const absl::Time end = absl::Now() + kHang;
    v1::Upload upload;
    while (absl::Now() < end && !(Get(&upload).ok() && upload.committed_bytes() == bytes)) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    EXPECT_EQ(upload.committed_bytes(), bytes);
  }
  void Abort(const std::string& id = "up") {
    grpc::ClientContext context;
    v1::AbortUploadRequest request;
    request.set_upload_id(id);
    v1::AbortUploadResponse response;
    EXPECT_TRUE(stub_->AbortUpload(&context, request, &response).ok());
  }
  // Sends the first MiB and waits until it is there.
  void SendOneMiB(Client* client) {
    client->Begin();
    client->SendContents(0, 1 << 20);
    AwaitBytes(1 << 20);
  }
  void ExpectRefused(Client* client, const std::string& what) {
    const grpc::Status status = client->stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr(what));
  }
};

}  // namespace agmm
