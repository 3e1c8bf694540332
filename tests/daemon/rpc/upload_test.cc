// Uploads over gRPC: valid and invalid messages, and resuming after a break.
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/failpoint.h"
#include "tests/daemon/rpc/upload_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Uploading, PutsTheContentsInPlace) {
  Client client(this);
  ASSERT_TRUE(client.SendContents(0, kTotal).ok());
  const grpc::Status status = client.Commit(ChecksumOfContents());
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(client.response().tensor().version(), 5);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
  EXPECT_TRUE(control_.AwaitBegun().write());
  EXPECT_EQ(control_.AwaitBegun().node(), kNode);
  EXPECT_TRUE(Stored() == Contents());
}

class UploadingToAHiddenHeap : public Uploading {
 protected:
  UploadingToAHiddenHeap() { hides_ = true; }
};

TEST_F(UploadingToAHiddenHeap, PutsTheContentsInPlace) {
  Client client(this);
  ASSERT_TRUE(client.SendContents(0, kTotal).ok());
  const grpc::Status status = client.Commit(ChecksumOfContents());
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(Stored() == Contents());
}

TEST_F(UploadingToAHiddenHeap, AHeapThatFailsFailsTheUpload) {
  hidden_->Fail(absl::InternalError("the GPU was lost"));
  Client client(this);
  EXPECT_THAT(client.SendContents(0, kTotal).error_message(), HasSubstr("the GPU was lost"));
}

TEST_F(Uploading, ChunksThatArriveEarlyWaitForTheOnesBeforeThem) {
  Client client(this);
  ASSERT_TRUE(client.Ask().ok());
  // The last chunk, with the commit, arrives first.
  v1::UploadRequest last = client.Chunk(2 << 20, Contents().substr(2 << 20));
  last.mutable_commit()->set_checksum(ChecksumOfContents());
  Client early(this), between(this);
  early.Start(last);
  between.Start(between.Chunk(1 << 20, Contents().substr(1 << 20, 1 << 20)));
  ASSERT_TRUE(client.SendContents(0, 1 << 20).ok());
  EXPECT_TRUE(between.Finish().ok());
  ASSERT_TRUE(early.Finish().ok());
  EXPECT_EQ(early.response().tensor().version(), 5);
  EXPECT_TRUE(Stored() == Contents());
}

TEST_F(Uploading, ResumesAfterABrokenConnection) {
  {
    Client client(this);
    SendOneMiB(&client);
  }
  Client client(this);
  ASSERT_TRUE(client.Ask().ok());
  EXPECT_EQ(client.response().committed_bytes(), 1 << 20);
  EXPECT_EQ(client.response().total_bytes(), kTotal);
  EXPECT_FALSE(client.response().has_tensor());
  EXPECT_THAT(control_.commits(), IsEmpty());
  EXPECT_TRUE(client.SendContents(1 << 20, kTotal).ok());
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
  EXPECT_EQ(control_.begins(), 1);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
  EXPECT_TRUE(Stored() == Contents());
}

TEST_F(Uploading, SkipsBytesThatWereReceived) {
  Client client(this);
  SendOneMiB(&client);
  EXPECT_TRUE(client.Send(0, "abcdefgh").ok());
  EXPECT_TRUE(client.Send(4096, Contents().substr(4096, 1 << 20)).ok());
  EXPECT_TRUE(client.SendContents(4096 + (1 << 20), kTotal).ok());
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
  EXPECT_TRUE(Stored() == Contents());
}

#ifdef AGMM_FAILPOINTS
TEST_F(Uploading, ResumesAfterAResetByTheDaemon) {
  failpoint::Arm("rpc.upload.reset", 1);
  Client client(this);
  EXPECT_EQ(client.SendContents(0, 1 << 20).error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(client.Ask().ok());
  EXPECT_EQ(client.response().committed_bytes(), 1 << 20);
  EXPECT_TRUE(client.SendContents(1 << 20, kTotal).ok());
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
  EXPECT_TRUE(Stored() == Contents());
}
#endif

TEST_F(Uploading, ACommitMayBeRepeated) {
  for (int i = 0; i < 3; ++i) {
    Client client(this);
    // Like a client that did not receive the answer: everything again, or only the commit.
    if (i < 2) {
      EXPECT_TRUE(client.SendContents(0, kTotal).ok());
    }
    ASSERT_TRUE(client.Commit(ChecksumOfContents()).ok()) << i;
    EXPECT_EQ(client.response().tensor().version(), 5);
  }
  Abort();  // too late to have an effect
  Client client(this);
  ASSERT_TRUE(client.Ask().ok());
  EXPECT_EQ(client.response().tensor().version(), 5);
  EXPECT_EQ(client.response().committed_bytes(), kTotal);
  EXPECT_EQ(client.Commit(0x123).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(control_.begins(), 1);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
}

TEST_F(Uploading, AnotherBodyUnderTheSameIdIsRefused) {
  Client first(this);
  SendOneMiB(&first);
  Client second(this, "up", kTensor + 1);
  EXPECT_EQ(second.Ask().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  // This does not affect the first upload.
  EXPECT_TRUE(first.SendContents(1 << 20, kTotal).ok());
  EXPECT_TRUE(first.Commit(ChecksumOfContents()).ok());
}

TEST_F(Uploading, AWrongChecksumLeavesNoContents) {
  Client client(this);
  EXPECT_TRUE(client.SendContents(0, kTotal).ok());
  const grpc::Status status = client.Commit(0x123);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(status.error_message(), HasSubstr("0000000000000123"));
  EXPECT_THAT(status.error_message(), HasSubstr(absl::StrFormat("%016x", ChecksumOfContents())));
  EXPECT_THAT(control_.commits(), ElementsAre(false));
  ExpectGone(&client, grpc::StatusCode::DATA_LOSS);
}

TEST_F(Uploading, AChunkTooFarAheadIsRefusedByTheOffsetThatComesNext) {
  Client client(this);
  SendOneMiB(&client);
  ExpectRefused(client.Send(int64_t{64} << 20, "abcd"), "expected 1048576");
  // Sends one more early chunk than the daemon keeps.
  Client early(this);
  for (int i = 0; i < 17; ++i) early.Start(early.Chunk((1 << 20) + 4, "abcd"));
  const Deadline end = Deadline::After(kPatience);
  while (early.Errors() == 0 && !end.HasPassed()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(early.Errors(), 1);
  // None of this has ended the upload.
  EXPECT_THAT(control_.commits(), IsEmpty());
  EXPECT_TRUE(client.Send(1 << 20, "abcd").ok());
  ExpectRefused(early.Finish(), "wait for the ones before them");
}

TEST_F(Uploading, AnUploadThatWaitsForItsLeaseTakesOneChunkAndDropsItWithItsClient) {
  control_.hold_ = true;
  const std::string mib = Contents().substr(0, 1 << 20);
  {
    Client client(this);
    client.Start(client.Chunk(0, mib));
    control_.AwaitBegun();
    Client other(this);
    ExpectRefused(other.Send(1 << 20, mib),
                  "already waits for its lease, and the daemon keeps only one");
    EXPECT_EQ(transfers_->taken(), client.Chunk(0, mib).ByteSizeLong());
  }
  const Deadline end = Deadline::After(kPatience);
  while (transfers_->taken() > 0 && !end.HasPassed()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(transfers_->taken(), 0);
  // The upload continues on another connection of its client.
  Client client(this);
  client.Start(client.Message());
  control_.Grant();
  ASSERT_TRUE(client.Finish().ok());
  EXPECT_EQ(client.response().committed_bytes(), 0);
  EXPECT_TRUE(client.SendContents(0, kTotal).ok());
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
  EXPECT_TRUE(Stored() == Contents());
}

TEST_F(Uploading, AMessageWithoutAChunkIsChargedToo) {
  control_.hold_ = true;
  Client client(this);
  client.Start(client.Message());
  control_.AwaitBegun();
  EXPECT_EQ(transfers_->taken(), client.Message().ByteSizeLong());
  control_.Grant();
  EXPECT_TRUE(client.Finish().ok());
}

TEST(Parsed, UnknownFieldsOfALargeRequestTakeNoMemory) {
  v1::UploadRequest request;
  request.mutable_begin()->set_upload_id("up");
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
      999, std::string(7 << 20, 'x'));
  grpc::ByteBuffer bytes;
  bool own = false;
  ASSERT_TRUE(grpc::SerializationTraits<v1::UploadRequest>::Serialize(request, &bytes, &own).ok());
  Parsed<v1::UploadRequest> parsed;
  ASSERT_TRUE(
      grpc::SerializationTraits<Parsed<v1::UploadRequest>>::Deserialize(&bytes, &parsed).ok());
  EXPECT_TRUE(parsed.ok);
  EXPECT_EQ(parsed.message.begin().upload_id(), "up");
  EXPECT_LT(parsed.message.SpaceUsedLong(), 4096u);
}

class UploadingWithLittleMemory : public Uploading {
 protected:
  UploadingWithLittleMemory() { transfer_bytes_ = 4 << 20; }
};

TEST_F(UploadingWithLittleMemory, AnOwnersWaitingBytesAreBounded) {
  Client client(this), early(this);
  ASSERT_TRUE(client.Ask().ok());
  // After a gap of four bytes. The size of the whole message counts.
  const auto beside = static_cast<int64_t>(early.Chunk(1 << 20, "").ByteSizeLong() + 8);
  const std::string mib = Contents().substr(4, (1 << 20) - (beside + 3) / 4 * 4);
  for (int64_t i = 0; i < 2; ++i) early.Start(early.Chunk(4 + (i << 20), mib));
  const Deadline end = Deadline::After(kPatience);
  while (transfers_->taken() <= 1 << 20 && !end.HasPassed()) absl::SleepFor(absl::Milliseconds(1));
  const grpc::Status refusal = client.Send(0, Contents().substr(0, 1024));
  EXPECT_EQ(refusal.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refusal.error_message(),
              testing::AllOf(HasSubstr(" MiB of tensors of "),
                             HasSubstr(" wait in this daemon's memory, and 2 MiB is the limit for "
                                       "one owner; wait for transfers to end")));
  early.Cancel();
  early.Finish();
  while (transfers_->taken() > 0 && !end.HasPassed()) absl::SleepFor(absl::Milliseconds(1));
  // The upload is unchanged.
  EXPECT_TRUE(client.SendContents(0, kTotal).ok());
  EXPECT_TRUE(client.Commit(ChecksumOfContents()).ok());
  EXPECT_TRUE(Stored() == Contents());
  EXPECT_EQ(transfers_->taken(), 0);
}

TEST_F(Uploading, PartsOfElementsAndBytesBehindTheEndAreRefused) {
  Client client(this);
  ASSERT_TRUE(client.Ask().ok());
  ExpectRefused(client.Send(0, "ab"), "whole elements");
  EXPECT_TRUE(client.Send(0, Contents().substr(0, 4)).ok());
  ExpectRefused(client.Send(2, "abcd"), "whole elements");
  ASSERT_TRUE(client.SendContents(0, kTotal - 4).ok());
  ExpectRefused(client.Send(kTotal - 4, "abcdefgh"), "outside the tensor");
}

TEST_F(Uploading, AnEarlyCommitReportsTheMissingBytes) {
  Client client(this);
  EXPECT_TRUE(client.SendContents(0, 1 << 20).ok());
  ExpectRefused(client.Commit(0), "1048576 of 2800000 bytes");
  EXPECT_THAT(control_.commits(), IsEmpty());
}

TEST_F(Uploading, AMessageThatBelongsToNoUploadIsRefused) {
  Client client(this);
  ExpectRefused(client.Send(v1::UploadRequest()), "begin");
  ExpectGone(&client, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(control_.begins(), 0);
}

}  // namespace
}  // namespace agmm
