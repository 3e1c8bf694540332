// Every possible end of an upload returns its lease.
#include "tests/daemon/rpc/upload_fixture.h"
#include "tests/support/notification.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Uploading, AnAbortReturnsTheLeaseAtOnce) {
  Client client(this);
  SendOneMiB(&client);
  Abort();
  EXPECT_THAT(control_.commits(), ElementsAre(false));
  EXPECT_THAT(control_.untouched(), ElementsAre(false));
  EXPECT_EQ(client.Send(1 << 20, "abcd").error_code(), grpc::StatusCode::ABORTED);
  Abort();
}

TEST_F(Uploading, AnAbortAlsoAppliesToTheMessagesThatItOvertakes) {
  Abort("overtaken");
  Client overtaken(this, "overtaken");
  EXPECT_EQ(overtaken.Ask().error_code(), grpc::StatusCode::ABORTED);
  Client first(this);
  SendOneMiB(&first);
  Abort();
  Client again(this);
  EXPECT_EQ(again.Ask().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(control_.begins(), 1);
}

TEST_F(Uploading, AnAbortDuringTheWaitWithdrawsTheLease) {
  control_.hold_ = true;
  Client client(this);
  client.Start(client.Message());
  control_.AwaitBegun();
  Abort();
  control_.AwaitTakenBack();
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(control_.commits(), IsEmpty());
}

// The upload outlives its connection.
TEST_F(Uploading, ABrokenConnectionDoesNotWithdrawAWaitingUpload) {
  control_.hold_ = true;
  Client client(this);
  client.Start(client.Message());
  control_.AwaitBegun();
  client.Cancel();
  client.Finish();
  control_.Grant();
  Client other(this);
  EXPECT_TRUE(other.SendContents(0, kTotal).ok());
  EXPECT_TRUE(other.Commit(ChecksumOfContents()).ok());
  EXPECT_EQ(control_.begins(), 1);
}

TEST_F(Uploading, AnAbortDuringTheWaitReturnsALateLease) {
  control_.hold_ = control_.granted_meanwhile_ = true;
  Client client(this);
  client.Start(client.Message());
  control_.AwaitBegun();
  client.Cancel();
  client.Finish();
  grpc::ClientContext context;
  v1::AbortUploadRequest request;
  request.set_upload_id("up");
  v1::AbortUploadResponse response;
  Notification done;
  stub_->async()->AbortUpload(&context, &request, &response, [&](const grpc::Status& status) {
    EXPECT_TRUE(status.ok());
    done.Notify();
  });
  control_.AwaitTakenBack();
  control_.Grant();
  ASSERT_TRUE(done.WaitFor(kPatience));
  EXPECT_THAT(control_.commits(), ElementsAre(false));
  // The tensor keeps its contents.
  EXPECT_THAT(control_.untouched(), ElementsAre(true));
}

TEST_F(Uploading, AnUploadOfAnEarlierGenerationIsAborted) {
  Client client(this);
  SendOneMiB(&client);
  store_->EndTransfers(absl::AbortedError("node b was lost"));
  EXPECT_EQ(client.SendContents(1 << 20, kTotal).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(control_.commits(), ElementsAre(false));
}

TEST_F(Uploading, AQuestionAboutAnUploadOfAnEarlierGenerationIsAborted) {
  Client client(this);
  SendOneMiB(&client);
  store_->EndTransfers(absl::AbortedError("node b was lost"));
  EXPECT_EQ(client.Ask().error_code(), grpc::StatusCode::ABORTED);
  ExpectGone(&client, grpc::StatusCode::ABORTED);
}

TEST_F(Uploading, ALeaseThatEndedBeforeTheCommitFailsIt) {
  control_.end_error_ = absl::AbortedError("its session has ended");
  Client client(this);
  EXPECT_TRUE(client.SendContents(0, kTotal).ok());
  EXPECT_EQ(client.Commit(ChecksumOfContents()).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
  ExpectGone(&client, grpc::StatusCode::ABORTED);
}

TEST_F(Uploading, WithoutALeaseFailsWithTheReason) {
  control_.begin_error_ = absl::NotFoundError("tensor 7 does not exist");
  Client client(this);
  EXPECT_EQ(client.Ask().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(control_.commits(), IsEmpty());
}

TEST_F(Uploading, EndsWithItsSession) {
  Client client(this);
  v1::UploadRequest request = client.Chunk(0, Contents().substr(0, 1 << 20));
  v1::CreateTensorRequest* put = request.mutable_begin()->mutable_put();
  *put->mutable_spec() = control_.tensor_.spec();
  put->set_session_id("mine");
  ASSERT_TRUE(client.Send(request).ok());
  EXPECT_EQ(control_.AwaitBegun().put().session_id(), "mine");
  // This chunk waits for the bytes before it.
  request.mutable_chunk()->set_offset_bytes((1 << 20) + 4);
  client.Start(request);
  uploads_->EndSession("another");
  EXPECT_THAT(control_.commits(), IsEmpty());
  uploads_->EndSession("mine");
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
  // The chunk may have arrived too late to wait.
  EXPECT_THAT(client.Finish().error_code(),
              ::testing::AnyOf(grpc::StatusCode::CANCELLED, grpc::StatusCode::NOT_FOUND));
}

TEST_F(Uploading, EndsWithItsDaemon) {
  {
    Client client(this);
    SendOneMiB(&client);
  }
  server_->Shutdown();
  uploads_.reset();
  EXPECT_THAT(control_.commits(), ElementsAre(false));
}

TEST_F(Uploading, ACommitRepeatedInFlightHasOneResult) {
  control_.hold_end_ = true;
  Client older(this);
  EXPECT_TRUE(older.SendContents(0, kTotal).ok());
  older.Start(older.LastMessage(ChecksumOfContents()));
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(true));
  Client newer(this);
  newer.Start(newer.LastMessage(ChecksumOfContents()));
  // Too late to be undone.
  uploads_->EndSession("");
  control_.AnswerEnd();
  for (Client* client : {&older, &newer}) {
    ASSERT_TRUE(client->Finish().ok());
    EXPECT_EQ(client->response().tensor().version(), 5u);
  }
  EXPECT_EQ(control_.begins(), 1);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
}

class UploadingInSilence : public Uploading {
 protected:
  // Far above the time that an active client needs, even under a sanitizer.
  UploadingInSilence() { limits_.silence = absl::Seconds(1); }
};

TEST_F(UploadingInSilence, ASilentClientLosesItsLease) {
  Client client(this);
  EXPECT_TRUE(client.SendContents(0, 1 << 20).ok());
  // A chunk after a gap that is never filled.
  client.Start(client.Chunk((1 << 20) + 4, "abcd"));
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectGone(&client, grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(UploadingInSilence, ALostClientLosesItsLease) {
  {
    Client client(this);
    client.Start(client.Message());
    control_.AwaitBegun();
  }
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
}

TEST_F(UploadingInSilence, ALostClientsRequestIsWithdrawn) {
  control_.hold_ = true;
  {
    Client client(this);
    client.Start(client.Message());
    control_.AwaitBegun();
  }
  control_.AwaitTakenBack();
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
  Client first(this, "first"), second(this, "second"), third(this, "third");
  first.Start(first.Message());
  control_.AwaitBegun();
  EXPECT_EQ(second.Ask().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  control_.hold_ = false;
  control_.Grant();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(first.SendContents(0, kTotal).ok());
  ASSERT_TRUE(first.Commit(ChecksumOfContents()).ok());
  // A committed upload is no longer open.
  EXPECT_TRUE(third.SendContents(0, kTotal).ok());
  EXPECT_TRUE(third.Commit(ChecksumOfContents()).ok());
}

class UploadingWithOthers : public Uploading {
 protected:
  UploadingWithOthers() { limits_.max_open = 8; }
};

TEST_F(UploadingWithOthers, OneOwnerHasAQuarter) {
  Client first(this, "first"), second(this, "second"), third(this, "third");
  EXPECT_TRUE(first.Ask().ok());
  EXPECT_TRUE(second.Ask().ok());
  const grpc::Status refusal = third.Ask();
  EXPECT_EQ(refusal.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refusal.error_message(), HasSubstr("2 is the limit for one owner"));
  Abort("first");
  EXPECT_TRUE(third.Ask().ok());
  EXPECT_TRUE(second.Ask().ok()) << "an open session may continue";
}

TEST_F(UploadingWithinBounds, AnAbortIsForgottenInTheEnd) {
  Abort();
  Client client(this);
  EXPECT_TRUE(client.SendContents(0, kTotal).ok());
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
}

TEST_F(UploadingWithinBounds, ACommitIsForgottenInTheEnd) {
  Client client(this);
  EXPECT_TRUE(client.SendContents(0, kTotal).ok());
  ASSERT_TRUE(client.Commit(ChecksumOfContents()).ok());
  ExpectGone(&client, grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace agmm
