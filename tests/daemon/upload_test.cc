// Upload sessions over gRPC: what a client may send, and how it comes back after a break.
#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"
#include "tests/daemon/upload_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Uploading, PutsTheContentsInPlace) {
  Client client(this);
  client.Begin();
  client.SendContents(0, kTotal);
  const grpc::Status status = client.Commit(ChecksumOfContents());
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(client.response.tensor().version(), 5);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
  EXPECT_TRUE(control_.AwaitBegun().write());
  EXPECT_EQ(control_.AwaitBegun().node(), kNode);
  EXPECT_TRUE(Stored() == Contents());
}

TEST_F(Uploading, GoesOnBehindABrokenStream) {
  {
    Client client(this);
    SendOneMiB(&client);
    client.context.TryCancel();
    client.stream->Finish();
  }
  v1::Upload upload;
  ASSERT_TRUE(Get(&upload).ok());
  EXPECT_EQ(upload.committed_bytes(), 1 << 20);
  EXPECT_EQ(upload.total_bytes(), kTotal);
  EXPECT_FALSE(upload.has_tensor());
  EXPECT_THAT(control_.commits(), IsEmpty());
  Client client(this);
  client.Begin();
  client.SendContents(1 << 20, kTotal);
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
  EXPECT_EQ(control_.begins(), 1);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
  EXPECT_TRUE(Stored() == Contents());
}

TEST_F(Uploading, PassesOverWhatIsThere) {
  {
    Client client(this);
    SendOneMiB(&client);
    client.context.TryCancel();
  }
  Client client(this);
  client.Begin();
  client.Send(4096, Contents().substr(4096, 1 << 20));
  client.SendContents(4096 + (1 << 20), kTotal);
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
  EXPECT_TRUE(Stored() == Contents());
}

#ifdef AGMM_FAILPOINTS
TEST_F(Uploading, GoesOnAfterAResetByTheDaemon) {
  failpoint::Arm("rpc.upload.reset", 1);
  {
    Client client(this);
    client.Begin();
    client.SendContents(0, 1 << 20);
    EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  v1::Upload upload;
  ASSERT_TRUE(Get(&upload).ok());
  EXPECT_EQ(upload.committed_bytes(), 1 << 20);
  Client client(this);
  client.Begin();
  client.SendContents(upload.committed_bytes(), kTotal);
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
  EXPECT_TRUE(Stored() == Contents());
}
#endif

TEST_F(Uploading, ASecondStreamEndsTheFirst) {
  Client older(this);
  SendOneMiB(&older);
  Client newer(this);
  newer.Begin();
  EXPECT_EQ(older.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  newer.SendContents(1 << 20, kTotal);
  EXPECT_TRUE(newer.Commit(ChecksumOfContents()).ok());
  EXPECT_THAT(control_.commits(), ElementsAre(true));
}

TEST_F(Uploading, ACommitMayBeRepeated) {
  for (int i = 0; i < 3; ++i) {
    Client client(this);
    client.Begin();
    // As from a client that did not hear the answer: from the beginning, or nothing but the commit.
    if (i < 2) client.SendContents(0, kTotal);
    ASSERT_TRUE(client.Commit(ChecksumOfContents()).ok()) << i;
    EXPECT_EQ(client.response.tensor().version(), 5);
  }
  v1::Upload upload;
  ASSERT_TRUE(Get(&upload).ok());
  EXPECT_EQ(upload.tensor().version(), 5);
  EXPECT_EQ(upload.committed_bytes(), kTotal);
  Abort();  // too late: no effect
  EXPECT_TRUE(Get(&upload).ok());
  EXPECT_EQ(control_.begins(), 1);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
}

TEST_F(Uploading, AnotherBodyUnderTheSameIdIsRefused) {
  Client first(this);
  SendOneMiB(&first);
  Client second(this);
  second.Begin("up", kTensor + 1);
  const grpc::Status status = second.stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  // The first is not touched by it.
  first.SendContents(1 << 20, kTotal);
  EXPECT_TRUE(first.Commit(ChecksumOfContents()).ok());
}

TEST_F(Uploading, AWrongChecksumLeavesNoContents) {
  Client client(this);
  client.Begin();
  client.SendContents(0, kTotal);
  const grpc::Status status = client.Commit(0x123);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(status.error_message(), HasSubstr("0000000000000123"));
  EXPECT_THAT(status.error_message(), HasSubstr(absl::StrFormat("%016x", ChecksumOfContents())));
  EXPECT_THAT(control_.commits(), ElementsAre(false));
  v1::Upload upload;
  EXPECT_EQ(Get(&upload).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(Uploading, AChunkThatDoesNotComeNextIsRefusedByTheOffsetThatDoes) {
  Client client(this);
  SendOneMiB(&client);
  client.Send((1 << 20) + 4, "abcd");
  ExpectRefused(&client, "expected 1048576");
  Client gap(this);
  gap.Begin();
  gap.Send((1 << 20) + 8, "abcdefgh");
  ExpectRefused(&gap, "expected 1048576");
  Client again(this);
  again.Begin();
  again.Send(1 << 20, "abcd");
  again.Send(1 << 20, "abcd");
  ExpectRefused(&again, "expected 1048580");
  // None of this has ended the upload.
  EXPECT_THAT(control_.commits(), IsEmpty());
  AwaitBytes((1 << 20) + 4);
}

TEST_F(Uploading, PartsOfElementsAndBytesBehindTheEndAreRefused) {
  for (int i = 0; i < 3; ++i) {
    Client client(this);
    client.Begin();
    if (i == 0) client.Send(0, "ab");
    if (i == 1) {
      client.SendContents(0, kTotal - 4);
      client.Send(kTotal - 4, "abcdefgh");
    }
    if (i == 2) {
      client.Send(0, "abcd");
      client.Send(2, "abcd");
    }
    ExpectRefused(&client, "");
  }
}

TEST_F(Uploading, AnEarlyCommitSaysWhatIsMissing) {
  Client client(this);
  client.Begin();
  client.SendContents(0, 1 << 20);
  const grpc::Status status = client.Commit(0);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("1048576 of 2800000 bytes"));
  EXPECT_THAT(control_.commits(), IsEmpty());
}

TEST_F(Uploading, AStreamThatDoesNotBeginIsRefused) {
  for (bool message : {false, true}) {
    Client client(this);
    if (message) client.Send(0, "abcd");
    client.stream->WritesDone();
    EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(control_.begins(), 0);
}

}  // namespace
}  // namespace agmm
