// Fills through any daemon of a world, read back through any other.
#include <gtest/gtest.h>

#include <string>

#include "kernels/base/fill.h"
#include "proto/convert/grpc_call.h"
#include "tests/daemon/fake_members.h"
#include "tests/daemon/world_harness.h"

namespace agmm {
namespace {

class FillWorldTest : public testing::Test {
 protected:
  FillWorldTest() {
    for (int node : {0, 1, 2}) EXPECT_TRUE(world_.Start(node).ok());
    world_.WaitReady(2);
  }
  absl::StatusOr<v1::Tensor> Fill(int node, const v1::FillTensorRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(ToGrpc(Deadline::After(kPatience)));
    v1::Tensor tensor;
    const absl::Status status = FromGrpc(
        v1::TensorService::NewStub(world_.Channel(node))->FillTensor(&context, request, &tensor));
    if (!status.ok()) return status;
    return tensor;
  }
  // Row-major without padding.
  absl::StatusOr<std::string> Read(int node, uint64_t id) {
    grpc::ClientContext context;
    context.set_deadline(ToGrpc(Deadline::After(kPatience)));
    v1::ReadTensorRequest request;
    request.mutable_tensor()->set_tensor_id(id);
    const auto stub = v1::ContentService::NewStub(world_.Channel(node));
    const auto reader = stub->ReadTensor(&context, request);
    std::string bytes;
    v1::ReadTensorResponse response;
    while (reader->Read(&response)) bytes += response.data();
    const absl::Status status = FromGrpc(reader->Finish());
    if (!status.ok()) return status;
    return bytes;
  }
  TestWorld world_{3};
};

TEST_F(FillWorldTest, TheSameValuesOnEveryShardingThroughEveryDaemon) {
  constexpr int64_t kRows = 70, kCols = 50;
  v1::FillTensorRequest request;
  request.mutable_fill()->set_kind(v1::Fill::KIND_UNIFORM);
  request.mutable_fill()->set_seed(11);
  std::string expected(kRows * kCols * 2, '\0');
  FillValues({FillKind::kUniform, 11}, DType::kBF16, 0, kRows * kCols, expected.data());
  int node = 0;
  for (const char* sharding : {"[M_x, K]", "[M, K_x]", "[M, K]"}) {
    SCOPED_TRACE(sharding);
    *request.mutable_put() = TensorRequest("X", sharding, kRows, kCols, MeshOf(3), v1::DTYPE_BF16);
    const absl::StatusOr<v1::Tensor> filled = Fill(node, request);
    ASSERT_TRUE(filled.ok()) << filled.status();
    EXPECT_EQ(filled->state(), v1::Tensor::STATE_READY);
    node = (node + 1) % 3;
    const absl::StatusOr<std::string> bytes = Read(node, filled->tensor_id());
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_TRUE(*bytes == expected);
  }
}

}  // namespace
}  // namespace agmm
