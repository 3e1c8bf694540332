// Reads of contents over gRPC: the offset, the version, and that every possible end of a call
// closes its access.
#include "kernels/base/reason.h"
#include "proto/convert/blocks.h"
#include "proto/convert/rpc_status.h"
#include "tests/daemon/rpc/tensor_service_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReadTensor : public TensorContents {
 protected:
  void SetUp() override {
    TensorContents::SetUp();
    control_.tensor_.set_version(5);
    absl::Status placed;
    io_->Write(control_.tensor_, 0, contents_, io_->local_generation(),
               [&](absl::Status s) { placed = s; });
    ASSERT_EQ(placed, absl::OkStatus());
    request_.mutable_tensor()->set_tensor_id(kTensor);
  }

  // Reads all messages, and checks that they are in order and without gaps from the requested
  // offset.
  grpc::Status Read(std::string* bytes) {
    grpc::ClientContext context;
    auto stream = stub_->ReadTensor(&context, request_);
    bool first = true;
    int64_t position = request_.offset_bytes();
    for (v1::ReadTensorResponse response; stream->Read(&response);) {
      EXPECT_EQ(response.has_tensor(), std::exchange(first, false));
      EXPECT_EQ(response.offset_bytes(), position);
      EXPECT_LE(static_cast<int64_t>(response.data().size()), kPieceBytes);
      position += static_cast<int64_t>(response.data().size());
      *bytes += response.data();
    }
    return stream->Finish();
  }

  const std::string contents_ = Contents();
  v1::ReadTensorRequest request_;
};

TEST_F(ReadTensor, ReturnsAllContents) {
  std::string bytes;
  EXPECT_TRUE(Read(&bytes).ok());
  EXPECT_TRUE(bytes == contents_);
  EXPECT_FALSE(control_.AwaitBegun().write());
  EXPECT_EQ(control_.AwaitBegun().node(), kNode);
  EXPECT_THAT(control_.commits(), ElementsAre(false));
}

class ReadTensorOfAHiddenHeap : public ReadTensor {
 protected:
  ReadTensorOfAHiddenHeap() { hides_ = true; }
};

TEST_F(ReadTensorOfAHiddenHeap, ReturnsAllContents) {
  std::string bytes;
  EXPECT_TRUE(Read(&bytes).ok());
  EXPECT_TRUE(bytes == contents_);
}

TEST_F(ReadTensor, MayUseAName) {
  request_.mutable_tensor()->set_name("weights");
  std::string bytes;
  EXPECT_TRUE(Read(&bytes).ok());
  EXPECT_EQ(control_.AwaitBegun().name(), "weights");
}

TEST_F(ReadTensor, BeginsAtTheRequestedOffset) {
  for (int64_t offset : {int64_t{4}, kCols * 4, kCols * 4 * 3 + 8, kTotal - 4, kTotal}) {
    request_.set_offset_bytes(offset);
    request_.set_version(5);
    std::string bytes;
    EXPECT_TRUE(Read(&bytes).ok());
    EXPECT_TRUE(bytes == contents_.substr(offset)) << offset;
  }
}

TEST_F(ReadTensor, OfAnotherVersionIsAborted) {
  request_.set_version(4);
  std::string bytes;
  const grpc::Status status = Read(&bytes);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("version 5 now"));
  EXPECT_THAT(control_.commits(), ElementsAre(false));
}

TEST_F(ReadTensor, OutsideTheTensorOrWithinAnElementIsRefused) {
  for (int64_t offset : {int64_t{2}, kTotal + 4}) {
    request_.set_offset_bytes(offset);
    std::string bytes;
    EXPECT_EQ(Read(&bytes).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << offset;
  }
}

TEST_F(ReadTensor, EndsItsAccessWhenItBreaks) {
  grpc::ClientContext context;
  auto stream = stub_->ReadTensor(&context, request_);
  v1::ReadTensorResponse response;
  EXPECT_TRUE(stream->Read(&response));
  context.TryCancel();
  while (stream->Read(&response)) {
  }
  stream->Finish();
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
}

TEST_F(ReadTensor, WithdrawsALeaseWhoseClientLeft) {
  control_.hold_ = true;
  grpc::ClientContext context;
  auto stream = stub_->ReadTensor(&context, request_);
  control_.AwaitBegun();
  context.TryCancel();
  stream->Finish();
  control_.AwaitTakenBack();
  EXPECT_THAT(control_.commits(), IsEmpty());
}

TEST_F(ReadTensor, ReturnsALeaseGrantedAfterItsClientLeft) {
  control_.hold_ = control_.granted_meanwhile_ = true;
  grpc::ClientContext context;
  auto stream = stub_->ReadTensor(&context, request_);
  control_.AwaitBegun();
  context.TryCancel();
  stream->Finish();
  control_.AwaitTakenBack();
  EXPECT_THAT(control_.commits(), IsEmpty());
  control_.Grant();
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
}

TEST_F(ReadTensor, WithoutALeaseFailsWithTheReason) {
  control_.begin_error_ = WithReason(absl::AbortedError("node b was lost"), kReasonPeerLost);
  std::string bytes;
  const grpc::Status status = Read(&bytes);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "node b was lost");
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(ReasonOf(FromProto(details)), kReasonPeerLost);
  EXPECT_THAT(control_.commits(), IsEmpty());
}

}  // namespace
}  // namespace agmm
