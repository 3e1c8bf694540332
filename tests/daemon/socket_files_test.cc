// The files next to a daemon's unix socket: files of others are not changed or removed, and no
// program that holds the socket can delay a start.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "daemon/node/file_socket.h"
#include "daemon/rpc/listen.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using testing::HasSubstr;

class SocketFiles : public testing::Test {
 protected:
  std::string File(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  static std::string TextOf(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  absl::Status Take() {
    return SocketLock::Take(socket_, absl::ZeroDuration(), [](const absl::Status&) {}).status();
  }
  const TempFolder folder_{"socket"};
  const std::string socket_ = folder_ / "x.sock";
};

TEST_F(SocketFiles, ALockThatIsALinkIsRefusedAndItsTargetKept) {
  const std::string target = File("precious", "data"), lock = socket_ + ".lock";
  for (const bool symbolic : {true, false}) {
    if (symbolic) {
      std::filesystem::create_symlink(target, lock);
    } else {
      std::filesystem::create_hard_link(target, lock);
    }
    const absl::Status refused = Take();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(lock + " is a link"));
    EXPECT_EQ(TextOf(target), "data");
    std::filesystem::remove(lock);
  }
}

TEST_F(SocketFiles, ALockThatIsAPipeOrAFolderIsRefusedAtOnce) {
  const std::string lock = socket_ + ".lock";
  ASSERT_EQ(mkfifo(lock.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Take()));
  std::filesystem::remove(lock);
  std::filesystem::create_directory(lock);
  EXPECT_FALSE(Take().ok());
  EXPECT_TRUE(std::filesystem::is_directory(lock));
  std::filesystem::remove(lock);
  EXPECT_TRUE(Take().ok());
}

TEST_F(SocketFiles, AReleasedLockLeavesNoFileAndCanBeTakenAgain) {
  for (int round = 0; round < 2; ++round) {
    auto lock = SocketLock::Take(socket_, absl::ZeroDuration(), [](const absl::Status&) {});
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_TRUE(absl::IsAlreadyExists(Take()));
    EXPECT_TRUE(std::filesystem::exists(socket_ + ".lock")) << "removed by a process without it";
    lock->reset();
    EXPECT_FALSE(std::filesystem::exists(socket_ + ".lock"));
  }
}

// A thread may find the file removed after it has opened it. Not every run meets this.
TEST_F(SocketFiles, ThreadsNeverHoldOneLockTogether) {
  std::atomic<int> holders = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        const auto lock =
            SocketLock::Take(socket_, absl::ZeroDuration(), [](const absl::Status&) {});
        if (!lock.ok()) continue;
        EXPECT_EQ(++holders, 1);
        // Without the file, another thread could lock a new one.
        EXPECT_TRUE(std::filesystem::exists(socket_ + ".lock"));
        --holders;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SocketFiles, AHolderThatDoesNotAcceptDelaysNoStart) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_.c_str(), sizeof(address.sun_path) - 1);
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  std::vector<int> sockets = {socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const absl::Cleanup close_all = [&sockets] {
    for (int fd : sockets) close(fd);
  };
  ASSERT_EQ(bind(sockets[0], where, sizeof(address)), 0);
  ASSERT_EQ(listen(sockets[0], 0), 0);
  // Connects until its backlog is full, when a blocking connect would not return.
  int error = 0;
  while (error == 0 && sockets.size() < 100) {
    sockets.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connect(sockets.back(), where, sizeof(address)) != 0) error = errno;
  }
  ASSERT_EQ(error, EAGAIN);
  EXPECT_THAT(std::string(Take().message()), HasSubstr("is in use by another program"));
}

TEST_F(SocketFiles, OnlyASocketIsReplacedByTheFileSocket) {
  const std::string path = File("x.sock.files", "data");
  const absl::Status refused = FileSocket::Start(path).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(path + " exists and is not a socket"));
  EXPECT_EQ(TextOf(path), "data");
  std::filesystem::remove(path);
  std::filesystem::create_symlink(File("precious", "data"), path);
  EXPECT_FALSE(FileSocket::Start(path).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  std::filesystem::remove(path);
  // The socket of a dead daemon.
  const int dead = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(dead);
  EXPECT_TRUE(FileSocket::Start(path).ok());
}

}  // namespace
}  // namespace agmm
