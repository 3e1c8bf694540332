// Tensor contents to and from real worlds: through any daemon, over broken connections, by clients
// that die.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/files/matrix_transfer.h"
#include "daemon/node/uploads.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"
#include "tests/support/proxy.h"

namespace agmm {
namespace {

constexpr int64_t kTensorRows = 1500, kTensorCols = 1001;  // 5.7 MiB

v1::BeginUpload Put(const std::string& sharding, std::vector<int> ranks,
                    DType dtype = DType::kF32) {
  v1::BeginUpload begin;
  begin.mutable_put()->set_name("A");
  v1::TensorSpec* spec = begin.mutable_put()->mutable_spec();
  spec->set_rows(kTensorRows);
  spec->set_cols(kTensorCols);
  spec->set_dtype(dtype == DType::kBF16 ? v1::DTYPE_BF16 : v1::DTYPE_F32);
  spec->set_sharding(sharding);
  v1::MeshAxis* axis = spec->mutable_mesh()->add_axes();
  axis->set_name("x");
  axis->set_size(static_cast<int>(ranks.size()));
  for (int rank : ranks) spec->mutable_mesh()->add_ranks(rank);
  return begin;
}

v1::TensorRef ByName(const std::string& name) {
  v1::TensorRef ref;
  ref.set_name(name);
  return ref;
}

const std::string& Contents() {
  static const std::string* const contents = [] {
    auto* bytes = new std::string(kTensorRows * kTensorCols * 4, '\0');
    for (size_t i = 0; i < bytes->size(); ++i)
      (*bytes)[i] = static_cast<char>(i * 2654435761u >> 13);
    return bytes;
  }();
  return *contents;
}

absl::Status FromContents(int64_t offset, int64_t size, char* out) {
  std::memcpy(out, Contents().data() + offset, size);
  return absl::OkStatus();
}

const Progress Nothing{[](int64_t) {}};

absl::StatusOr<std::string> DownloadAll(Connection* connection, const v1::TensorRef& ref) {
  std::string bytes;
  const auto tensor = Download(
      connection, ref,
      [&](const v1::Tensor&, int64_t offset, absl::string_view data) {
        EXPECT_EQ(offset, static_cast<int64_t>(bytes.size()));
        bytes.append(data.data(), data.size());
        return absl::OkStatus();
      },
      Nothing);
  if (!tensor.ok()) return tensor.status();
  return bytes;
}

class ContentsOfThree : public ::testing::Test {
 protected:
  explicit ContentsOfThree(std::string failpoints = "")
      : world_({.nodes = 3, .heap = "32MiB", .failpoints = std::move(failpoints)}) {}
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(world_.StartAll()); }
  int64_t FreeNow() { return FreeBytes(world_.Status(0)); }

  World world_;
};

TEST_F(ContentsOfThree, TravelThroughAnyDaemon) {
  for (const char* sharding : {"[M_x, K]", "[K, N_x]", "[M, K]"}) {
    for (int through : {0, 1, 2}) {
      SCOPED_TRACE(absl::StrCat(sharding, " through node ", through));
      const auto connection = world_.Connect(through);
      // Node 1 has no shard of the tensor.
      const auto tensor =
          Upload(connection.get(), Put(sharding, {2, 0}), Contents().size(), FromContents, Nothing);
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      EXPECT_EQ(tensor->state(), v1::Tensor::STATE_READY);
      for (int reader : {0, 1, 2}) {
        const auto bytes = DownloadAll(world_.Connect(reader).get(), ByName("A"));
        ASSERT_TRUE(bytes.ok()) << bytes.status();
        EXPECT_TRUE(*bytes == Contents());
      }
    }
  }
}

TEST_F(ContentsOfThree, OfAKilledSessionClientFreeTheirSpaceAtOnce) {
  const int64_t free_bytes = FreeNow();
  for (int through : {0, 2}) {
    auto connection = world_.Connect(through);
    const auto session = connection->OpenSession();
    ASSERT_TRUE(session.ok()) << session.status();
    v1::UploadRequest request;
    *request.mutable_begin() = Put("[M_x, K]", {0, 1, 2});
    request.mutable_begin()->set_upload_id("up");
    request.mutable_begin()->mutable_put()->set_session_id(*session);
    {
      Connection::Call call(connection.get(), Deadline::Infinite());
      v1::UploadResponse response;
      request.mutable_chunk()->set_data(Contents().substr(0, 1 << 20));
      ASSERT_TRUE(connection->contents()->Upload(call.context(), request, &response).ok());
      EXPECT_TRUE(world_.WaitFor(0, "the space to be taken", [&](const auto& status) {
        return FreeBytes(status) < free_bytes;
      }));
    }
    EXPECT_LT(FreeNow(), free_bytes);
    connection.reset();
    EXPECT_TRUE(world_.WaitFor(0, "the space to come back", [&](const auto& status) {
      return FreeBytes(status) == free_bytes;
    }));
  }
}

TEST(Contents, SurviveWhileTheClientSearchesForItsDaemon) {
  EXPECT_GT(UploadLimits().silence, kNoticeBound + kRetryBound)
      << "the library promises to go on until then";
}

TEST_F(ContentsOfThree, OfAKilledClientFreeTheirSpaceSoon) {
  const int64_t free_bytes = FreeNow();
  v1::UploadRequest request;
  *request.mutable_begin() = Put("[M_x, K]", {0, 1, 2});
  request.mutable_begin()->set_upload_id("up");
  {
    const auto connection = world_.Connect(1);
    Connection::Call call(connection.get(), Deadline::Infinite());
    v1::UploadResponse response;
    ASSERT_TRUE(connection->contents()->Upload(call.context(), request, &response).ok());
  }
  EXPECT_LT(FreeNow(), free_bytes);
  // Without a session, the daemon notices only the missing messages.
  EXPECT_TRUE(world_.WaitFor(0, "the space to come back",
                             [&](const auto& status) { return FreeBytes(status) == free_bytes; }));
}

TEST_F(ContentsOfThree, OfAnUploadWithAFailedSourceFreeTheirSpace) {
  const int64_t free_bytes = FreeNow();
  const auto connection = world_.Connect(1);
  const auto tensor = Upload(
      connection.get(), Put("[M_x, K]", {0, 1, 2}), Contents().size(),
      [](int64_t offset, int64_t size, char* out) {
        if (offset > (2 << 20)) return absl::DataLossError("the disk is bad");
        return FromContents(offset, size, out);
      },
      Nothing);
  EXPECT_EQ(tensor.status().message(), "the disk is bad");
  // Nodes that were allocating space for it answer first.
  EXPECT_TRUE(world_.WaitFor(0, "the space to come back",
                             [&](const auto& status) { return FreeBytes(status) == free_bytes; }));
}

TEST_F(ContentsOfThree, ResumeAfterABrokenConnection) {
  Proxy proxy(std::stoi(world_.endpoint(1).substr(world_.endpoint(1).rfind(':') + 1)));
  Connection connection(*ResolveEndpoint(proxy.endpoint()));
  ASSERT_TRUE(connection.GetStatus().ok());
  constexpr int64_t kCutAfter = 3 << 19;  // in bytes: in the middle of a message
  int reconnecting = 0;
  Progress progress = Nothing;
  progress.reconnecting = [&] {
    if (++reconnecting == 1) proxy.CutAfterToDaemon(kCutAfter);
  };
  proxy.CutAfterToDaemon(kCutAfter);
  const auto tensor =
      Upload(&connection, Put("[M_x, K]", {0, 1, 2}), Contents().size(), FromContents, progress);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  // gRPC itself resends unsent data, so the second cut may go unnoticed.
  EXPECT_GE(reconnecting, 1);
  EXPECT_TRUE(proxy.HasCut());
  reconnecting = 0;
  progress.reconnecting = [&] {
    if (++reconnecting == 1) proxy.CutAfterToClient(kCutAfter);
  };
  proxy.CutAfterToClient(kCutAfter);
  std::string bytes;
  const auto read = Download(
      &connection, ByName("A"),
      [&](const v1::Tensor&, int64_t offset, absl::string_view data) {
        EXPECT_EQ(offset, static_cast<int64_t>(bytes.size()));
        bytes.append(data.data(), data.size());
        return absl::OkStatus();
      },
      progress);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_GE(reconnecting, 1);
  EXPECT_TRUE(proxy.HasCut());
  EXPECT_TRUE(bytes == Contents());
}

TEST_F(ContentsOfThree, OfRawBF16FilesArriveUnchanged) {
  const std::string path = world_.Path("A.bf16");
  WriteFile(path, Contents().substr(0, kTensorRows * kTensorCols * 2));
  const auto file = OpenRaw(path, kTensorRows, kTensorCols, DType::kBF16);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto connection = world_.Connect(0);
  const auto tensor = UploadFile(connection.get(), Put("[M_x, K]", {0, 1, 2}, DType::kBF16), **file,
                                 DType::kBF16, Nothing);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  const auto out = NpyWriter::Create(world_.Path("B.bf16"), kTensorRows, kTensorCols, DType::kBF16,
                                     /*raw=*/true);
  ASSERT_TRUE(out.ok()) << out.status();
  ASSERT_TRUE(DownloadFile(connection.get(), ByName("A"), out->get(), Nothing).ok());
  ASSERT_TRUE((*out)->Commit().ok());
  EXPECT_TRUE(ReadFile(world_.Path("B.bf16")) == ReadFile(path));
}

#ifdef AGMM_FAILPOINTS
class ContentsOverResets : public ContentsOfThree {
 protected:
  ContentsOverResets() : ContentsOfThree("rpc.upload.reset=3") {}
};

TEST_F(ContentsOverResets, ArriveWhole) {
  const auto connection = world_.Connect(1);
  ASSERT_TRUE(connection->GetStatus().ok());
  const auto tensor = Upload(connection.get(), Put("[M_x, K]", {0, 1, 2}), Contents().size(),
                             FromContents, Nothing);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  const auto bytes = DownloadAll(connection.get(), ByName("A"));
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_TRUE(*bytes == Contents());
}
#endif

}  // namespace
}  // namespace agmm
