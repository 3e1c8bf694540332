// How a mapping ends, and what its end says of the contents. That the memory is the tensor's: tests/e2e.
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "absl/time/clock.h"
#include "proto/channel/channel.h"
#include "tests/daemon/tensor_service_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string MakeFolder() {
  std::string folder = "/tmp/agmm-map-tensor-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

class MapTensor : public TensorContents {
 protected:
  void SetUp() override {
    TensorContents::SetUp();
    files_ = *FileSocket::Start(folder_ + "/files");
    mappings_->SetFiles(files_.get());
    stub_ = v1::TensorService::NewStub(
        OpenChannel("unix:" + folder_ + "/s"));
  }
  void Configure(grpc::ServerBuilder* builder) override {
    builder->AddListeningPort("unix:" + folder_ + "/s", grpc::InsecureServerCredentials());
  }

  struct Client {
    explicit Client(MapTensor* test) { stream = test->stub_->MapTensor(&context); }
    void Begin() {
      v1::MapTensorRequest request;
      request.mutable_begin()->mutable_tensor()->set_tensor_id(kTensor);
      request.mutable_begin()->set_writable(true);
      stream->Write(request);
    }
    void Commit() {
      v1::MapTensorRequest request;
      request.mutable_commit();
      stream->Write(request);
      stream->WritesDone();
    }
    grpc::ClientContext context;
    v1::MapTensorResponse response;
    std::unique_ptr<grpc::ClientReaderWriter<v1::MapTensorRequest, v1::MapTensorResponse>> stream;
  };

  const std::string folder_ = MakeFolder();
  std::unique_ptr<FileSocket> files_;
};

TEST_F(MapTensor, OneThatEndsBeforeItIsOfferedLeavesTheTensorUntouched) {
  control_.hold_ = true;
  Client client(this);
  client.Begin();
  control_.AwaitBegun();
  mappings_->EndAll(absl::CancelledError("the client is gone"));
  control_.Grant();
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(control_.commits(), ElementsAre(false));
  EXPECT_THAT(control_.untouched(), ElementsAre(true));
}

TEST_F(MapTensor, ALeaseThatItsClientDoesNotWaitForIsTakenBack) {
  control_.hold_ = true;
  Client client(this);
  client.Begin();
  control_.AwaitBegun();
  client.context.TryCancel();
  client.stream->Finish();
  control_.AwaitTakenBack();
  EXPECT_THAT(control_.commits(), testing::IsEmpty());
}

TEST_F(MapTensor, OneThatWasOfferedDoesNot) {
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.stream->Read(&client.response));
  client.stream->WritesDone();
  EXPECT_TRUE(client.stream->Finish().ok());
  EXPECT_THAT(control_.commits(), ElementsAre(false));
  EXPECT_THAT(control_.untouched(), ElementsAre(false));
}

TEST_F(MapTensor, ACommitOnItsWayIsDecidedByItsAnswer) {
  control_.hold_end_ = true;
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.stream->Read(&client.response));
  client.Commit();
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(true));
  mappings_->EndAll(absl::AbortedError("the world changed"));
  control_.AnswerEnd();
  ASSERT_TRUE(client.stream->Read(&client.response));
  EXPECT_EQ(client.response.tensor().version(), 5u);
  EXPECT_TRUE(client.stream->Finish().ok());
}

TEST_F(MapTensor, ACommitThatIsRefusedFails) {
  control_.end_error_ = absl::AbortedError("its session has ended");
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.stream->Read(&client.response));
  client.Commit();
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
}

class MapTensorInSilence : public MapTensor {
 protected:
  MapTensorInSilence() { silence_ = absl::Milliseconds(50); }
};

TEST_F(MapTensorInSilence, AStreamThatDoesNotBeginIsEnded) {
  Client client(this);
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(control_.commits(), IsEmpty());
}

TEST_F(MapTensor, StreamsThatHaveNotBegunCount) {
  // More than are taken: the last to come is refused without a word of its own.
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 257; ++i) {
    clients.push_back(std::make_unique<Client>(this));
    if (i < 256) clients.back()->context.set_wait_for_ready(true);
  }
  Client late(this);
  EXPECT_EQ(late.stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const auto& client : clients) client->context.TryCancel();
  for (const auto& client : clients) client->stream->Finish();
}

absl::Duration CpuTime() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

TEST(FileSocket, RestsWhileThereAreNoDescriptors) {
  const std::string path = MakeFolder() + "/files";
  const auto files = FileSocket::Start(path);
  ASSERT_TRUE(files.ok()) << files.status();
  const std::string token = (*files)->Offer({0});
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;  // poll takes its two
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const absl::Duration cpu = CpuTime();
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_LT(CpuTime() - cpu, absl::Milliseconds(100));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  // Who waited is served.
  char byte;
  ASSERT_EQ(send(client, token.data(), token.size(), MSG_NOSIGNAL), static_cast<ssize_t>(token.size()));
  EXPECT_EQ(recv(client, &byte, 1, 0), 1);
  close(client);
}

}  // namespace
}  // namespace agmm
