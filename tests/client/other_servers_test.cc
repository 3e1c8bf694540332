// Servers that are not agmmd, and a stopped daemon: the client's error says which.
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agmm/v1/cluster.grpc.pb.h"
#include "agmm/v1/job.grpc.pb.h"
#include "client/connect/connection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

// Answers every connection with `words`; sends nothing if they are empty.
class Listener {
 public:
  explicit Listener(std::string words) : words_(std::move(words)) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd_, 16) != 0 ||
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      std::abort();
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~Listener() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  void Run() {
    for (int client; (client = accept(fd_, nullptr, nullptr)) >= 0; close(client)) {
      char bytes[4096];
      if (recv(client, bytes, sizeof(bytes), 0) <= 0) continue;
      send(client, words_.data(), words_.size(), MSG_NOSIGNAL);
      // Waits until the client closes the connection, because a reset could overtake the words.
      if (!words_.empty()) shutdown(client, SHUT_WR);
      while (recv(client, bytes, sizeof(bytes), 0) > 0) continue;
    }
  }

  const std::string words_;
  int fd_ = -1, port_ = 0;
  std::thread thread_;
};

void ExpectForeign(const std::string& endpoint) {
  Connection connection(*ResolveEndpoint(endpoint));
  const absl::Status status = connection.GetStatus().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("something that is not agmmd answers at " + endpoint));
}

TEST(Connection, AnotherServerIsReportedAsNotAgmmd) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  // Any service except ClusterService; without a service, gRPC does not serve the port.
  v1::JobService::Service other;
  builder.RegisterService(&other);
  const auto server = builder.BuildAndStart();
  ExpectForeign("127.0.0.1:" + std::to_string(port));
}

// Answers GetStatus like agmmd once, and then with error codes of gRPC itself.
class Bare final : public v1::ClusterService::Service {
 public:
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse*) override {
    std::lock_guard lock(mutex_);
    return next_;
  }
  void Answer(const grpc::Status& next) {
    std::lock_guard lock(mutex_);
    next_ = next;
  }

 private:
  std::mutex mutex_;
  grpc::Status next_;
};

TEST(Connection, EachStatusOfGrpcItselfReachesTheUserAsASentence) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  Bare service;
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  const std::string endpoint = absl::StrCat("127.0.0.1:", port);
  for (int code = 1; code <= 16; ++code) {
    // UNAVAILABLE means a lost daemon, for which calls are repeated.
    if (code == grpc::StatusCode::UNAVAILABLE) continue;
    const auto named = static_cast<grpc::StatusCode>(code);
    for (const std::string& bare :
         {std::string(), absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}) {
      Connection connection(*ResolveEndpoint(endpoint));
      service.Answer(grpc::Status::OK);
      ASSERT_TRUE(connection.GetStatus().ok());
      service.Answer(grpc::Status(named, bare));
      const absl::Status status = connection.GetStatus().status();
      EXPECT_EQ(static_cast<int>(status.code()), code);
      const std::string text(status.message());
      EXPECT_THAT(text, HasSubstr(endpoint));
      EXPECT_GE(std::count(text.begin(), text.end(), ' '), 9) << text;
    }
  }
}

TEST(Connection, AServerOfAnotherProtocolIsReportedAsNotAgmmd) {
  ExpectForeign(Listener("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").endpoint());
  ExpectForeign(Listener("SSH-2.0-OpenSSH_9.2\r\n").endpoint());
}

TEST(Connection, AStoppedDaemonIsDistinguishedFromAnAbsentOne) {
  const Listener silent("");
  Connection connection(*ResolveEndpoint(silent.endpoint()));
  const absl::Status status = connection.GetStatus(kPatience).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("something listens at " + silent.endpoint() + ", but says nothing"));
}

}  // namespace
}  // namespace agmm
