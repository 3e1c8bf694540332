// Every way an upload can end gives its lease back.

#include <thread>

#include "tests/daemon/notification.h"
#include "tests/daemon/upload_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(Uploading, AnAbortGivesTheLeaseBackAtOnce) {
  Client client(this);
  SendOneMiB(&client);
  Abort();
  EXPECT_THAT(control_.commits(), ElementsAre(false));
  EXPECT_THAT(control_.untouched(), ElementsAre(false));
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  Abort();
  v1::Upload upload;
  EXPECT_EQ(Get(&upload).error_code(), grpc::StatusCode::NOT_FOUND);
  // The id may be used again.
  Client other(this);
  other.Begin();
  other.SendContents(0, kTotal);
  EXPECT_TRUE(other.Commit(ChecksumOfContents()).ok());
}

TEST_F(Uploading, AnAbortWhileItWaitsGivesTheLeaseBackWhenItComes) {
  control_.hold_ = true;
  Client client(this);
  client.Begin();
  control_.AwaitBegun();
  v1::Upload upload;
  ASSERT_TRUE(Get(&upload).ok());
  EXPECT_EQ(upload.total_bytes(), 0);
  client.context.TryCancel();
  client.stream->Finish();
  grpc::ClientContext context;
  v1::AbortUploadRequest request;
  request.set_upload_id("up");
  v1::AbortUploadResponse response;
  Notification done;
  stub_->async()->AbortUpload(&context, &request, &response, [&](const grpc::Status& status) {
    EXPECT_TRUE(status.ok());
    done.Notify();
  });
  control_.Grant();
  ASSERT_TRUE(done.WaitFor(kHang));
  EXPECT_THAT(control_.commits(), ElementsAre(false));
  // The tensor keeps its contents.
  EXPECT_THAT(control_.untouched(), ElementsAre(true));
}

TEST_F(Uploading, AnUploadOfAnEarlierWorldIsAborted) {
  Client client(this);
  SendOneMiB(&client);
  store_->EndTransfers();
  client.SendContents(1 << 20, kTotal);
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(control_.commits(), ElementsAre(false));
}

TEST_F(Uploading, WhoAsksForAnUploadOfAnEarlierWorldHearsThatItHasEnded) {
  Client client(this);
  SendOneMiB(&client);
  store_->EndTransfers();
  v1::Upload upload;
  EXPECT_EQ(Get(&upload).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(Get(&upload).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(Uploading, ALeaseThatEndedMeanwhileFailsTheCommit) {
  control_.end_error_ = absl::AbortedError("its session has ended");
  Client client(this);
  client.Begin();
  client.SendContents(0, kTotal);
  EXPECT_EQ(client.Commit(ChecksumOfContents()).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
  v1::Upload upload;
  EXPECT_EQ(Get(&upload).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(Uploading, WithoutALeaseTellsWhyAndEndsNothing) {
  control_.begin_error_ = absl::NotFoundError("there is no tensor 7");
  Client client(this);
  client.Begin();
  const grpc::Status status = client.stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(control_.commits(), IsEmpty());
}

TEST_F(Uploading, EndsWithItsSession) {
  v1::UploadRequest request;
  request.mutable_begin()->set_upload_id("up");
  v1::CreateTensorRequest* put = request.mutable_begin()->mutable_put();
  *put->mutable_spec() = control_.tensor_.spec();
  put->set_session_id("mine");
  Client client(this);
  client.stream->Write(request);
  client.SendContents(0, 1 << 20);
  AwaitBytes(1 << 20);
  EXPECT_EQ(control_.AwaitBegun().put().session_id(), "mine");
  uploads_->EndSession("another");
  EXPECT_THAT(control_.commits(), IsEmpty());
  uploads_->EndSession("mine");
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(Uploading, EndsWithItsDaemon) {
  {
    Client client(this);
    SendOneMiB(&client);
    client.context.TryCancel();
  }
  server_->Shutdown();
  uploads_.reset();
  EXPECT_THAT(control_.commits(), ElementsAre(false));
}

class UploadingInSilence : public Uploading {
 protected:
  UploadingInSilence() { limits_.silence = absl::Milliseconds(50); }
};

TEST_F(UploadingInSilence, ASilentClientLosesItsLease) {
  Client client(this);
  client.Begin();
  client.SendContents(0, 1 << 20);
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(UploadingInSilence, AClientThatIsGoneLosesItsLease) {
  {
    Client client(this);
    client.Begin();
    control_.AwaitBegun();
    client.context.TryCancel();
  }
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
}

class UploadingWithinBounds : public Uploading {
 protected:
  UploadingWithinBounds() {
    limits_.kept = absl::ZeroDuration();
    limits_.max_open = 1;
  }
};

TEST_F(UploadingWithinBounds, OpenUploadsAreBounded) {
  control_.hold_ = true;
  Client first(this), second(this);
  first.Begin("first");
  control_.AwaitBegun();
  second.Begin("second");
  EXPECT_EQ(second.stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  control_.hold_ = false;
  control_.Grant();
  first.SendContents(0, kTotal);
  ASSERT_TRUE(first.Commit(ChecksumOfContents()).ok());
  // One that is committed is open no more.
  Client third(this);
  third.Begin("third");
  third.SendContents(0, kTotal);
  EXPECT_TRUE(third.Commit(ChecksumOfContents()).ok());
}

TEST_F(UploadingWithinBounds, ACommitIsForgottenInTheEnd) {
  Client client(this);
  client.Begin();
  client.SendContents(0, kTotal);
  ASSERT_TRUE(client.Commit(ChecksumOfContents()).ok());
  v1::Upload upload;
  EXPECT_EQ(Get(&upload).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace agmm
