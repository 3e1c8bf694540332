// Mapped shards: a client's writes change the tensor itself, and once the mapping has ended, they
// no longer reach it.
#include "client/connect/tensor_mapping.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string>

#include "client/connect/tensor_transfer.h"
#include "daemon/node/file_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "tests/daemon/world_harness.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMappedRows = 100, kMappedCols = 33;

class MappingOfTwo : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int node : {0, 1}) {
      Config config = world_.ConfigOf(node);
      config.socket = Socket(node);
      config.machines = kNoJournal;
      ASSERT_EQ(world_.Start(node, config, [](absl::Status) {}), absl::OkStatus());
    }
    for (int node : {0, 1}) ASSERT_NE(world_.WaitReady(node), 0u);
  }
  std::string Socket(int node) const { return folder_ / std::to_string(node); }
  std::unique_ptr<Connection> Connect(int node) {
    auto connection = std::make_unique<Connection>(*ResolveEndpoint(Socket(node)));
    EXPECT_TRUE(connection->GetStatus().ok());
    return connection;
  }
  static Deadline Soon() { return Deadline::After(kPatience); }

  // A tensor on these ranks, all of whose elements are 1.
  v1::Tensor Put(Connection* connection, const std::vector<int>& ranks) {
    v1::BeginUpload begin;
    begin.mutable_put()->set_name("A");
    v1::TensorSpec* spec = begin.mutable_put()->mutable_spec();
    spec->set_rows(kMappedRows);
    spec->set_cols(kMappedCols);
    spec->set_dtype(v1::DTYPE_F32);
    spec->set_sharding("[M_x, K]");
    v1::MeshAxis* axis = spec->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(static_cast<int>(ranks.size()));
    for (int rank : ranks) spec->mutable_mesh()->add_ranks(rank);
    const auto ones = [](int64_t, int64_t size, char* out) {
      std::fill_n(reinterpret_cast<float*>(out), size / sizeof(float), 1.0f);
      return absl::OkStatus();
    };
    const auto tensor =
        Upload(connection, begin, kMappedRows * kMappedCols * 4, ones, {[](int64_t) {}});
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor.value_or(v1::Tensor());
  }
  static v1::BeginMapping Begin(bool writable, const std::string& session = "") {
    v1::BeginMapping begin;
    begin.mutable_tensor()->set_name("A");
    begin.set_writable(writable);
    begin.set_session_id(session);
    return begin;
  }
  static float At(const TensorMapping& mapping, int64_t row, int64_t col) {
    for (const TensorMapping::Shard& shard : mapping.shards()) {
      if (row < shard.row_begin || row >= shard.row_end) continue;
      float value;
      std::memcpy(&value, shard.data + (row - shard.row_begin) * shard.pitch_bytes + col * 4, 4);
      return value;
    }
    ADD_FAILURE() << "no shard has row " << row;
    return 0;
  }
  // Returns the first element as a reader over the wire sees it.
  float FirstElement(Connection* connection) {
    v1::TensorRef ref;
    ref.set_name("A");
    float first = -1;
    const auto take = [&](const v1::Tensor&, int64_t offset, absl::string_view data) {
      if (offset == 0) std::memcpy(&first, data.data(), 4);
      return absl::OkStatus();
    };
    const auto tensor = Download(connection, ref, take, {[](int64_t) {}});
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return first;
  }

  const TempFolder folder_{"mapping"};
  TestWorld world_{2};
};

TEST_F(MappingOfTwo, WritesChangeTheTensor) {
  const auto connection = Connect(1);
  const v1::Tensor before = Put(connection.get(), {1});
  const auto mapping = TensorMapping::Open(connection.get(), Begin(true), Soon());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  ASSERT_EQ((*mapping)->shards().size(), 1u);
  EXPECT_EQ(At(**mapping, kMappedRows - 1, kMappedCols - 1), 1.0f);
  const float seven = 7;
  std::memcpy((*mapping)->shards()[0].data, &seven, 4);
  const auto tensor = (*mapping)->Commit(Soon());
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_GT(tensor->version(), before.version());
  EXPECT_EQ(FirstElement(connection.get()), 7.0f);
  // Later writes have no effect.
  const float nine = 9;
  std::memcpy((*mapping)->shards()[0].data, &nine, 4);
  EXPECT_EQ(FirstElement(connection.get()), 7.0f);
}

TEST_F(MappingOfTwo, AReadableOneCannotBeWritten) {
  const auto connection = Connect(0);
  Put(connection.get(), {0, 1});
  const auto mapping = TensorMapping::Open(connection.get(), Begin(false), Soon());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  // Only the shards on this node.
  ASSERT_EQ((*mapping)->shards().size(), 1u);
  EXPECT_EQ((*mapping)->shards()[0].rank, 0);
  EXPECT_EQ((*mapping)->shards()[0].row_end, kMappedRows / 2);
  EXPECT_EQ(At(**mapping, 0, 0), 1.0f);
  EXPECT_EQ(mprotect((*mapping)->shards()[0].data, 4096, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
}

TEST_F(MappingOfTwo, AMappingWithoutACommitLeavesNoContents) {
  const auto connection = Connect(1);
  Put(connection.get(), {1});
  {
    // The client disconnects without ending the mapping.
    const auto other = Connect(1);
    const auto mapping = TensorMapping::Open(other.get(), Begin(true), Soon());
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    const auto second = TensorMapping::Open(connection.get(), Begin(false), Deadline::After({}));
    EXPECT_EQ(second.status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  const auto mapping = TensorMapping::Open(connection.get(), Begin(false), Soon());
  EXPECT_EQ(mapping.status().code(), absl::StatusCode::kFailedPrecondition);
  // The lease has been released.
  Put(connection.get(), {1});
}

TEST_F(MappingOfTwo, ATensorWithShardsElsewhereIsNotMappedForWriting) {
  const auto connection = Connect(0);
  Put(connection.get(), {0, 1});
  const auto mapping = TensorMapping::Open(connection.get(), Begin(true), Soon());
  EXPECT_EQ(mapping.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(mapping.status().message()), HasSubstr("rank 1 is on node b"));
  EXPECT_EQ(FirstElement(connection.get()), 1.0f);
}

TEST_F(MappingOfTwo, ATensorWithAllShardsElsewhereIsNotMapped) {
  const auto connection = Connect(0);
  Put(connection.get(), {1});
  for (const bool writable : {false, true}) {
    const auto mapping = TensorMapping::Open(connection.get(), Begin(writable), Soon());
    EXPECT_EQ(mapping.status().code(), absl::StatusCode::kFailedPrecondition) << mapping.status();
  }
}

TEST_F(MappingOfTwo, OverTcpIsRefused) {
  Put(Connect(0).get(), {0});
  Connection connection(*ResolveEndpoint(world_.Address(0)));
  const auto mapping = TensorMapping::Open(&connection, Begin(false), Soon());
  EXPECT_EQ(mapping.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(mapping.status().message()), HasSubstr("unix socket"));
}

TEST_F(MappingOfTwo, EndsWithItsSession) {
  const auto connection = Connect(1);
  Put(connection.get(), {1});
  auto owner = Connect(1);
  const auto session = owner->OpenSession();
  ASSERT_TRUE(session.ok()) << session.status();
  const auto mapping = TensorMapping::Open(connection.get(), Begin(true, *session), Soon());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  EXPECT_EQ(At(**mapping, 0, 0), 1.0f);
  EXPECT_TRUE((*mapping)->status().ok());
  owner.reset();
  EXPECT_TRUE(Eventually([&] { return !(*mapping)->status().ok(); }));
  // The memory is private to this process now.
  EXPECT_TRUE(std::isnan(At(**mapping, 0, 0)));
  const float nine = 9;
  std::memcpy((*mapping)->shards()[0].data, &nine, 4);
  EXPECT_FALSE((*mapping)->Commit(Soon()).ok());
  Put(connection.get(), {1});
  EXPECT_EQ(FirstElement(connection.get()), 1.0f);
}

TEST_F(MappingOfTwo, EndsWithItsWorld) {
  const auto connection = Connect(1);
  Put(connection.get(), {1});
  const auto mapping = TensorMapping::Open(connection.get(), Begin(false), Soon());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  world_.Stop(0);
  EXPECT_TRUE(Eventually([&] { return !(*mapping)->status().ok(); }));
  EXPECT_TRUE(std::isnan(At(**mapping, 0, 0)));
}

// Returns the number of bytes received for `token`.
ssize_t Fetch(const std::string& path, const std::string& token) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ssize_t got = -1;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    char byte;
    send(fd, token.data(), token.size(), MSG_NOSIGNAL);
    got = recv(fd, &byte, 1, 0);
    if (got < 0 && errno == ECONNRESET) got = 0;
  }
  close(fd);
  return got;
}

TEST(FileSocket, ATokenIsValidOnce) {
  const TempFolder folder("file-socket");
  const auto files = FileSocket::Start(folder / "files");
  ASSERT_TRUE(files.ok()) << files.status();
  struct stat info;
  ASSERT_EQ(stat((folder / "files").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const std::string token = (*files)->Offer({dup(0)}, [] {});
  EXPECT_EQ(Fetch(folder / "files", std::string(32, '0')), 0);
  EXPECT_EQ(Fetch(folder / "files", token), 1);
  EXPECT_EQ(Fetch(folder / "files", token), 0);
  const std::string withdrawn = (*files)->Offer({dup(0)}, [] {});
  (*files)->Withdraw(withdrawn);
  EXPECT_EQ(Fetch(folder / "files", withdrawn), 0);
}

TEST(FileSocket, AnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const TempFolder folder("file-socket");
  const auto files = FileSocket::Start(folder / "files");
  ASSERT_TRUE(files.ok()) << files.status();
  // Opens the modes for everybody, so that only the check of the user remains.
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod((folder / "files").c_str(), 0666), 0);
  const std::string token = (*files)->Offer({dup(0)}, [] {});
  const pid_t child = fork();
  if (child == 0) {
    const bool other = setgid(65534) == 0 && setuid(65534) == 0;
    _exit(!other ? 2 : Fetch(folder / "files", token) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(Fetch(folder / "files", token), 1);
}

}  // namespace
}  // namespace agmm
