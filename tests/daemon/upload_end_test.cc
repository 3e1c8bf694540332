// Every way an upload can end gives its lease back.
#include <thread>

#include "kernels/base/failpoint.h"
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
}

TEST_F(Uploading, AnAbortHoldsForTheStreamsThatItOvertakes) {
  Abort("overtaken");
  Client overtaken(this);
  overtaken.Begin("overtaken");
  EXPECT_EQ(overtaken.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  Client first(this);
  SendOneMiB(&first);
  Abort();
  Client again(this);
  again.Begin();
  EXPECT_EQ(again.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(control_.begins(), 1);
}

TEST_F(Uploading, AnAbortWhileItWaitsTakesTheLeaseBack) {
  control_.hold_ = true;
  Client client(this);
  client.Begin();
  control_.AwaitBegun();
  Abort();
  control_.AwaitTakenBack();
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(control_.commits(), IsEmpty());
}

// It outlives its stream.
TEST_F(Uploading, AStreamThatBreaksWhileItWaitsTakesNothingBack) {
  control_.hold_ = true;
  Client client(this);
  client.Begin();
  control_.AwaitBegun();
  client.context.TryCancel();
  client.stream->Finish();
  control_.Grant();
  Client other(this);
  other.Begin();
  other.SendContents(0, kTotal);
  EXPECT_TRUE(other.Commit(ChecksumOfContents()).ok());
  EXPECT_EQ(control_.begins(), 1);
}

TEST_F(Uploading, AnAbortWhileItWaitsGivesTheLeaseBackWhenItComes) {
  control_.hold_ = control_.granted_meanwhile_ = true;
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

// A stream that a test holds in its own hand, next to the clients'.
struct Stream {
  Uploads::Hold Attach(Uploads* uploads) {
    v1::BeginUpload begin;
    begin.set_upload_id("up");
    begin.set_tensor_id(kTensor);
    UploadRecord::Listener listener;
    listener.opened = [this](absl::Status status) { opened = status; };
    listener.ended = [this](absl::Status status) {
      end = std::move(status);
      ended.Notify();
    };
    absl::StatusOr<Uploads::Hold> hold = uploads->Attach({}, begin, std::move(listener));
    EXPECT_TRUE(hold.ok()) << hold.status();
    return hold.value_or(Uploads::Hold());
  }
  absl::Status opened = absl::UnknownError("not yet"), end;
  Notification ended;
};

class UploadingCommitted : public Uploading {
 protected:
  // Sends all and asks for the commit, whose answer is held back.
  void AskForCommit(Client* client) {
    control_.hold_end_ = true;
    client->Begin();
    client->SendContents(0, kTotal);
    v1::UploadRequest commit;
    commit.mutable_commit()->set_checksum(ChecksumOfContents());
    client->stream->Write(commit);
    EXPECT_THAT(control_.AwaitEnded(), ElementsAre(true));
  }
};

TEST_F(UploadingCommitted, AStreamThatTakesOverHearsOfTheCommitThatIsOnItsWay) {
  Client older(this);
  AskForCommit(&older);
  Stream newer;
  const Uploads::Hold hold = newer.Attach(uploads_.get());
  EXPECT_EQ(newer.opened, absl::OkStatus());
  absl::StatusOr<v1::Tensor> committed = absl::UnknownError("not yet");
  hold.upload->Commit(hold.stream, ChecksumOfContents(),
                      [&](absl::StatusOr<v1::Tensor> tensor) { committed = std::move(tensor); });
  EXPECT_EQ(committed.status(), absl::UnknownError("not yet"));
  control_.AnswerEnd();
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->version(), 5u);
  EXPECT_EQ(older.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(control_.begins(), 1);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
  hold.upload->Detach(hold.stream);
  ASSERT_TRUE(newer.ended.WaitFor(kHang));
  EXPECT_EQ(newer.end, absl::OkStatus());
}

#ifdef AGMM_FAILPOINTS
TEST_F(UploadingCommitted, AStreamThatIsTakenOverAsItLeavesIsNotTouchedAnyMore) {
  // A touch of what is freed is for the sanitizers to see.
  Client first(this);
  AskForCommit(&first);
  failpoint::Arm("rpc.upload.detach_waits");
  std::thread answer([&] { control_.AnswerEnd(); });
  const absl::Time end = absl::Now() + kHang;
  while (failpoint::Hits("rpc.upload.detach_waits") == 0 && absl::Now() < end)
    absl::SleepFor(absl::Milliseconds(1));
  // It has its answer and is about to leave: the next one may end it.
  Stream second;
  const Uploads::Hold hold = second.Attach(uploads_.get());
  EXPECT_TRUE(first.stream->Finish().ok());
  server_->Shutdown();  // its reactor is gone
  failpoint::Disarm("rpc.upload.detach_waits");
  answer.join();
  hold.upload->Detach(hold.stream);
  EXPECT_TRUE(second.ended.WaitFor(kHang));
}
#endif

class UploadingInSilence : public Uploading {
 protected:
  // Far above what a client that does speak may take, also under a sanitizer.
  UploadingInSilence() { limits_.silence = absl::Seconds(1); }
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

TEST_F(UploadingInSilence, AStreamThatComesBackToACommittedUploadMayNotBeSilentEither) {
  {
    Client client(this);
    client.Begin();
    client.SendContents(0, kTotal);
    ASSERT_TRUE(client.Commit(ChecksumOfContents()).ok());
  }
  // Also behind another one.
  for (int i = 0; i < 2; ++i) {
    Client client(this);
    client.Begin();
    EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  // The commit stands.
  Client client(this);
  client.Begin();
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
  EXPECT_EQ(control_.begins(), 1);
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

TEST_F(UploadingWithinBounds, AnAbortIsForgottenInTheEnd) {
  Abort();
  Client client(this);
  client.Begin();
  client.SendContents(0, kTotal);
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
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
