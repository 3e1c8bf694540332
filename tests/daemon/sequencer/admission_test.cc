#include "daemon/sequencer/admission.h"

#include <utility>

#include "gmock/gmock.h"
#include "tests/daemon/fake_members.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

TEST(Admission, ASchedulePastWhatCanBeProvedIsRefusedWithTheChunksThatCan) {
  FakeMembers members(2, 64, 1 << 20);
  Placement placement;
  const std::unique_ptr<Catalog> catalog = std::make_unique<Catalog>(&members, &placement);
  catalog->OnReady();
  v1::SubmitJobRequest request;
  request.set_spec("A[M_x, K] * B[K, N_x] -> C[M, N_x]");
  *request.mutable_mesh() = MeshOf(128);
  // Eight rows a rank, so that eight chunks of a shard are not empty.
  for (const auto& [sharding, rows] :
       {std::pair("[M_x, K]", 1024), {"[K, N_x]", 128}, {"[M, N_x]", 1024}}) {
    catalog->CreateTensor({}, TensorRequest("", sharding, rows, 128, MeshOf(128)),
                          [&](absl::StatusOr<v1::Tensor> tensor) {
                            ASSERT_TRUE(tensor.ok()) << tensor.status();
                            request.add_tensors()->set_tensor_id(tensor->tensor_id());
                          });
    for (const auto& [node, command] : members.Take(v1::Command::kPlaceTensor))
      catalog->OnReport(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
  }
  request.mutable_options()->set_algorithm("ring");
  request.mutable_options()->set_split("N=x");
  const auto admit = [&](int chunks) {
    request.mutable_options()->set_chunk_count(chunks);
    return Admit(request, members, *catalog, [](uint64_t) { return true; }).status();
  };
  const absl::Status status = admit(8);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ask for 4 chunks at most"));
  EXPECT_TRUE(admit(4).ok()) << admit(4);
}

}  // namespace
}  // namespace agmm
