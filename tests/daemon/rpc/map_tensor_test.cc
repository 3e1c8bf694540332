// The end of a mapping, and its effect on the contents. tests/e2e checks that the memory is the
// tensor's.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>

#include "absl/time/clock.h"
#include "kernels/base/deadline.h"
#include "proto/channel/channel.h"
#include "tests/daemon/rpc/tensor_service_fixture.h"
#include "tests/support/notification.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A client of the file socket: sends the token, receives the files, and stays connected.
class Fetched {
 public:
  Fetched(const std::string& path, const std::string& token)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    Connect(path);
    Send(token);
    Take();
  }
  // Wraps a connection that has not sent its token yet.
  explicit Fetched(int fd) : fd_(fd) {}
  ~Fetched() { close(fd_); }

  void Connect(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  void Send(const std::string& token) const {
    EXPECT_EQ(send(fd_, token.data(), token.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(token.size()));
  }
  void GiveUpAfter(absl::Duration limit) {
    const timeval patience = absl::ToTimeval(limit);
    ASSERT_EQ(setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  }
  void Take() { EXPECT_TRUE(Gets()); }
  bool Gets() {
    char byte;
    return recv(fd_, &byte, 1, 0) == 1;
  }

 private:
  const int fd_;
};

class MapTensor : public TensorContents {
 protected:
  void SetUp() override {
    TensorContents::SetUp();
    mappings_->OnReport([this](v1::Report report) {
      std::lock_guard lock(mutex_);
      reports_.push_back(std::move(report));
    });
    files_ = *FileSocket::Start(folder_ / "files");
    mappings_->SetFiles(files_.get());
    stub_ = v1::ContentService::NewStub(OpenChannel(absl::StrCat("unix:", folder_ / "s")));
  }
  void Configure(grpc::ServerBuilder* builder) override {
    builder->AddListeningPort(absl::StrCat("unix:", folder_ / "s"),
                              grpc::InsecureServerCredentials());
  }

  struct Client {
    explicit Client(MapTensor* test) { stream = test->stub_->MapTensor(&context); }
    void Begin(const std::string& session = "", bool writable = true) {
      v1::MapTensorRequest request;
      request.mutable_begin()->set_session_id(session);
      request.mutable_begin()->mutable_tensor()->set_tensor_id(kTensor);
      request.mutable_begin()->set_writable(writable);
      stream->Write(request);
    }
    void Commit() { Send(&v1::MapTensorRequest::mutable_commit); }
    void Renew() { Send(&v1::MapTensorRequest::mutable_renew); }
    void Release() { Send(&v1::MapTensorRequest::mutable_release); }
    bool Reads() { return stream->Read(&response); }
    grpc::Status End() {
      stream->WritesDone();
      return stream->Finish();
    }
    template <typename Message>
    void Send(Message* (v1::MapTensorRequest::*set)()) {
      v1::MapTensorRequest request;
      (request.*set)();
      stream->Write(request);
    }
    grpc::ClientContext context;
    v1::MapTensorResponse response;
    std::unique_ptr<grpc::ClientReaderWriter<v1::MapTensorRequest, v1::MapTensorResponse>> stream;
  };

  const TempFolder folder_{"map-tensor"};
  // Waits for the first report of this kind.
  v1::Report AwaitReport(v1::Report::ReportCase kind) {
    const Deadline end = Deadline::After(kPatience);
    while (!end.HasPassed()) {
      {
        std::lock_guard lock(mutex_);
        for (const v1::Report& report : reports_)
          if (report.report_case() == kind) return report;
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    ADD_FAILURE() << "no report " << kind;
    return {};
  }
  // Asks on the loop, like the member.
  std::vector<v1::MemoryHeld> Held() {
    std::vector<v1::MemoryHeld> held;
    Notification done;
    loop_.Post([&] {
      const size_t before = reports_.size();
      mappings_->ReportHeld();
      for (size_t i = before; i < reports_.size(); ++i)
        if (reports_[i].has_memory_held()) held.push_back(reports_[i].memory_held());
      done.Notify();
    });
    EXPECT_TRUE(done.WaitFor(kPatience));
    return held;
  }
  void EndWorld() {
    store_->EndTransfers(absl::AbortedError("node b was lost"));
    mappings_->EndAll(absl::AbortedError("the world changed"));
  }
  Fetched Fetch(const Client& client) { return {folder_ / "files", client.response.token()}; }

  std::mutex mutex_;
  std::vector<v1::Report> reports_;
  std::unique_ptr<FileSocket> files_;
};

TEST_F(MapTensor, AMappingThatEndsBeforeItsOfferLeavesTheTensorUntouched) {
  control_.hold_ = true;
  Client client(this);
  client.Begin();
  control_.AwaitBegun();
  mappings_->EndAll(absl::CancelledError("the client left"));
  control_.Grant();
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(control_.commits(), ElementsAre(false));
  EXPECT_THAT(control_.untouched(), ElementsAre(true));
}

TEST_F(MapTensor, ALeaseOfAClientThatLeftIsWithdrawn) {
  control_.hold_ = true;
  Client client(this);
  client.Begin();
  control_.AwaitBegun();
  client.context.TryCancel();
  client.stream->Finish();
  control_.AwaitTakenBack();
  EXPECT_THAT(control_.commits(), testing::IsEmpty());
}

TEST_F(MapTensor, AMappingThatEndsAfterItsFetchEmptiesTheTensor) {
  for (const bool fetches : {false, true}) {
    Client client(this);
    client.Begin();
    ASSERT_TRUE(client.Reads());
    if (fetches) const Fetched fetched = Fetch(client);
    EXPECT_TRUE(client.End().ok());
  }
  ASSERT_TRUE(Eventually([&] { return control_.commits().size() == 2; }));
  EXPECT_THAT(control_.commits(), ElementsAre(false, false));
  EXPECT_THAT(control_.untouched(), ElementsAre(true, false));
}

TEST_F(MapTensor, ARenewedOneThatEndsEmptiesTheTensorOnceItsClientSaysThatItUsesTheMemory) {
  for (const bool uses : {false, true}) {
    Client client(this);
    client.Begin();
    ASSERT_TRUE(client.Reads());
    {
      const Fetched fetched = Fetch(client);
      for (int round = 0; round < 3; ++round) {
        client.Commit();
        ASSERT_TRUE(client.Reads());
        client.Renew();
        ASSERT_TRUE(client.Reads());
        // The client does not learn of the last renewal.
        if (round < 2 || uses) fetched.Send("u");
      }
      client.context.TryCancel();
    }
    client.stream->Finish();
    EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
    const std::vector<bool> untouched = control_.untouched();
    // The last one is the pin's.
    ASSERT_GE(untouched.size(), 2u);
    EXPECT_EQ(untouched[untouched.size() - 2], !uses);
  }
}

TEST_F(MapTensor, ACommitInFlightIsDecidedByItsAnswer) {
  control_.hold_end_ = true;
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.stream->Read(&client.response));
  client.Commit();
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(true));
  mappings_->EndAll(absl::AbortedError("the world changed"));
  control_.hold_end_ = false;
  control_.AnswerEnd();
  // The client gets the answer, and then the end.
  ASSERT_TRUE(client.Reads());
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

TEST_F(MapTensor, TheLeaseIsReturnedWithTheConnectionAndNotWithTheStream) {
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.stream->Read(&client.response));
  {
    const Fetched fetched = Fetch(client);
    client.context.TryCancel();
    EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
    // Reported once it takes longer than it should, and kept all the same.
    const v1::MemoryHeld held = AwaitReport(v1::Report::kMemoryHeld).memory_held();
    EXPECT_EQ(held.bytes(), control_.tensor_.shard_bytes());
    EXPECT_TRUE(held.writable());
    EXPECT_THAT(held.ranks(), ElementsAre(0));
    EXPECT_THAT(control_.commits(), IsEmpty());
    EXPECT_EQ(mappings_->count(), 1u);
    // Its generation has not ended, so it still has its lease.
    EXPECT_THAT(Held(), IsEmpty());
  }
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
  EXPECT_THAT(control_.untouched(), ElementsAre(false));
  EXPECT_EQ(AwaitReport(v1::Report::kMemoryReleased).memory_released().hold_id(),
            AwaitReport(v1::Report::kMemoryHeld).memory_held().hold_id());
  EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
}

TEST_F(MapTensor, ItsMemoryIsPinnedFromTheFirstCommitToItsEnd) {
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.Reads());
  {
    const Fetched fetched = Fetch(client);
    for (int round = 1; round <= 3; ++round) {
      client.Commit();
      ASSERT_TRUE(client.Reads());
      EXPECT_EQ(client.response.tensor().version(), 5u);
      // An answer has no shards, because they stay at their places.
      EXPECT_EQ(client.response.shards_size(), 0);
      client.Renew();
      ASSERT_TRUE(client.Reads());
      EXPECT_EQ(control_.begins(), round + 1);
    }
    client.Commit();
    ASSERT_TRUE(client.Reads());
    EXPECT_THAT(control_.commits(), ElementsAre(true, true, true, true));
    EXPECT_THAT(control_.pins(), ElementsAre(true, false, false, false));
    EXPECT_TRUE(client.End().ok());
    // The pin is returned with the connection.
    EXPECT_EQ(mappings_->count(), 1u);
    EXPECT_EQ(control_.commits().size(), 4u);
  }
  EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
  EXPECT_THAT(control_.commits(), ElementsAre(true, true, true, true, false));
  EXPECT_TRUE(control_.untouched().back());
  // A client without the right to use the memory does not hold it.
  for (const v1::Report& report : reports_) EXPECT_FALSE(report.has_memory_held());
}

TEST_F(MapTensor, AReleaseLeavesTheContents) {
  size_t ends = 0;
  for (const bool writable : {false, true}) {
    Client client(this);
    client.Begin("", writable);
    ASSERT_TRUE(client.Reads());
    client.Release();
    ASSERT_TRUE(client.Reads());
    ASSERT_EQ(control_.commits().size(), ends + 1);
    EXPECT_FALSE(control_.commits().back());
    EXPECT_TRUE(control_.untouched().back());
    EXPECT_TRUE(control_.pins().back());
    client.Renew();
    ASSERT_TRUE(client.Reads());
    EXPECT_TRUE(client.End().ok());
    // The lease, and then the pin.
    ends += 3;
    EXPECT_EQ(control_.commits().size(), ends);
  }
}

TEST_F(MapTensor, MessagesOutOfTurnEndIt) {
  using Message = void (Client::*)();
  const std::vector<std::pair<bool, std::vector<Message>>> wrong = {
      {true, {&Client::Renew}},
      {true, {&Client::Release, &Client::Release}},
      {true, {&Client::Commit, &Client::Commit}},
      {true, {&Client::Commit, &Client::Renew, &Client::Renew}},
      {false, {&Client::Commit}},
      {false, {&Client::Release, &Client::Release}},
  };
  for (const auto& [writable, messages] : wrong) {
    Client client(this);
    client.Begin("", writable);
    ASSERT_TRUE(client.Reads());
    for (size_t i = 0; i + 1 < messages.size(); ++i) {
      (client.*messages[i])();
      ASSERT_TRUE(client.Reads());
    }
    (client.*messages.back())();
    EXPECT_FALSE(client.Reads());
    EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  Client client(this);
  client.Renew();
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
}

TEST_F(MapTensor, ARenewalOfAClientThatLeftIsWithdrawn) {
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.Reads());
  client.Commit();
  ASSERT_TRUE(client.Reads());
  control_.hold_ = true;
  client.Renew();
  ASSERT_TRUE(Eventually([&] { return control_.begins() == 2; }));
  client.context.TryCancel();
  client.stream->Finish();
  control_.AwaitTakenBack();
  EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
  // The commit, and the pin.
  EXPECT_THAT(control_.commits(), ElementsAre(true, false));
}

TEST_F(MapTensor, ARenewalThatIsGrantedTooLateLeavesTheContents) {
  control_.granted_meanwhile_ = true;
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.Reads());
  client.Commit();
  ASSERT_TRUE(client.Reads());
  control_.hold_ = true;
  client.Renew();
  ASSERT_TRUE(Eventually([&] { return control_.begins() == 2; }));
  mappings_->EndAll(absl::CancelledError("the client left"));
  control_.Grant();
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
  EXPECT_THAT(control_.commits(), ElementsAre(true, false, false));
  EXPECT_THAT(control_.untouched(), ElementsAre(false, true, true));
}

TEST_F(MapTensor, ARenewalThatIsRefusedEndsIt) {
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.Reads());
  client.Commit();
  ASSERT_TRUE(client.Reads());
  control_.begin_error_ = absl::NotFoundError("no tensor 7");
  client.Renew();
  EXPECT_FALSE(client.Reads());
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
  EXPECT_THAT(control_.commits(), ElementsAre(true, false));
}

TEST_F(MapTensor, ItEndsWithADeletedTensorOnceItHasNoLease) {
  Client idle(this), busy(this);
  for (Client* client : {&idle, &busy}) {
    client->Begin();
    ASSERT_TRUE(client->Reads());
    client->Commit();
    ASSERT_TRUE(client->Reads());
  }
  busy.Renew();
  ASSERT_TRUE(busy.Reads());
  mappings_->EndDeleted(kTensor + 1);
  EXPECT_EQ(mappings_->count(), 2u);
  mappings_->EndDeleted(kTensor);
  EXPECT_FALSE(idle.Reads());
  EXPECT_EQ(idle.stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  busy.Commit();
  EXPECT_FALSE(busy.Reads());
  EXPECT_EQ(busy.stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
}

TEST_F(MapTensor, ItEndsWithItsSessionWhileItIsKept) {
  Client client(this);
  client.Begin("mine");
  ASSERT_TRUE(client.Reads());
  client.Commit();
  ASSERT_TRUE(client.Reads());
  mappings_->EndSession("mine");
  EXPECT_FALSE(client.Reads());
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(MapTensor, KeptMemoryIsHeldAtTheEndOfItsGeneration) {
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.Reads());
  {
    const Fetched fetched = Fetch(client);
    client.Commit();
    ASSERT_TRUE(client.Reads());
    EndWorld();
    EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
    EXPECT_EQ(Held().size(), 1u);
  }
  EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
  // The pin was void with its generation.
  EXPECT_THAT(control_.commits(), ElementsAre(true));
}

TEST_F(MapTensor, MemoryMappedAtTheEndOfItsGenerationIsReportedAsHeld) {
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.stream->Read(&client.response));
  uint64_t hold = 0;
  {
    const Fetched fetched = Fetch(client);
    EndWorld();
    EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
    const auto held = Held();
    ASSERT_EQ(held.size(), 1u);
    EXPECT_EQ(held[0].bytes(), control_.tensor_.shard_bytes());
    EXPECT_TRUE(held[0].writable());
    hold = held[0].hold_id();
    // In the next generation it is reported under the same id.
    EndWorld();
    ASSERT_EQ(Held().size(), 1u);
    EXPECT_EQ(Held()[0].hold_id(), hold);
  }
  EXPECT_EQ(AwaitReport(v1::Report::kMemoryReleased).memory_released().hold_id(), hold);
  EXPECT_THAT(Held(), IsEmpty());
  EXPECT_TRUE(Eventually([&] { return mappings_->count() == 0; }));
  EXPECT_THAT(control_.commits(), IsEmpty());
}

TEST_F(MapTensor, UnfetchedMemoryIsNotHeld) {
  Client client(this);
  client.Begin();
  ASSERT_TRUE(client.stream->Read(&client.response));
  EndWorld();
  EXPECT_EQ(client.stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(Held(), IsEmpty());
  EXPECT_EQ(mappings_->count(), 0u);
  // Its token will never be valid.
  Fetched late(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  late.Connect(folder_ / "files");
  late.Send(client.response.token());
  EXPECT_FALSE(late.Gets());
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

class MapTensorOfAHiddenHeap : public MapTensor {
 protected:
  MapTensorOfAHiddenHeap() { hides_ = true; }
};

TEST_F(MapTensorOfAHiddenHeap, IsRefusedAndTheLeaseIsReturned) {
  Client client(this);
  client.Begin();
  const grpc::Status status = client.stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(),
            "the memory of rank 0 cannot be mapped by clients; use put and get");
  EXPECT_EQ(control_.AwaitEnded().size(), 1u);
}

TEST_F(MapTensor, StreamsThatHaveNotBegunCountTowardsTheBound) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 256; ++i) clients.push_back(std::make_unique<Client>(this));
  ASSERT_TRUE(Eventually([&] { return mappings_->count() == clients.size(); }));
  Client late(this);
  EXPECT_EQ(late.stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const auto& client : clients) client->context.TryCancel();
  for (const auto& client : clients) client->stream->Finish();
}

TEST(FileSocket, PausesWhileDescriptorsAreShort) {
  const TempFolder folder("file-socket");
  const auto files = FileSocket::Start(folder / "files");
  ASSERT_TRUE(files.ok()) << files.status();
  const std::string token = (*files)->Offer({dup(0)}, [] {});
  Fetched client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;  // poll uses two
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Time begin = absl::Now();
  client.Connect(folder / "files");
  EXPECT_TRUE(Eventually([&] { return (*files)->accepts() >= 3; }));
  // It tries once at the end of each pause, on any machine.
  const int64_t looks = (*files)->accepts();
  const int64_t pauses = absl::ToInt64Milliseconds(absl::Now() - begin) / FileSocket::kShortageMs;
  EXPECT_LE(looks, pauses + 1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  // The client that waited is served.
  client.Send(token);
  client.Take();
}

TEST(FileSocket, SilentClientsDelayNoOther) {
  const TempFolder folder("file-socket");
  const auto files = FileSocket::Start(folder / "files");
  ASSERT_TRUE(files.ok()) << files.status();
  // Handled one after the other, they would take ten times as long as a client waits for its files.
  std::deque<Fetched> silent;
  for (int i = 0; i < 100; ++i) {
    silent.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    silent.back().Connect(folder / "files");
  }
  Fetched client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  client.GiveUpAfter(absl::Seconds(5));
  client.Connect(folder / "files");
  client.Send((*files)->Offer({dup(0)}, [] {}));
  client.Take();
  // Every connection is closed, those beyond the bound at once.
  for (Fetched& one : silent) EXPECT_FALSE(one.Gets());
}

TEST(FileSocket, ATokenMayComeInPieces) {
  const TempFolder folder("file-socket");
  const auto files = FileSocket::Start(folder / "files");
  ASSERT_TRUE(files.ok()) << files.status();
  const std::string token = (*files)->Offer({dup(0)}, [] {});
  Fetched other(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fetched client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  client.Connect(folder / "files");
  client.Send(token.substr(0, 5));
  // Accepted after the first piece was received.
  other.Connect(folder / "files");
  EXPECT_TRUE(Eventually([&] { return (*files)->accepts() == 2; }));
  client.Send(token.substr(5));
  client.Take();
}

}  // namespace
}  // namespace agmm
