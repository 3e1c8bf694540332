// agmmctl matmul on real worlds of 1 to 3 daemons with 1 to 4 devices each.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"
#include "tests/support/seed.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

struct Case {
  int64_t m, n, k;
};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class MatmulOn : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  MatmulOn() : world_({.nodes = std::get<0>(GetParam()), .devices = std::get<1>(GetParam())}) {}
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
    // Fills the memory, so that no later result is right only because memory was zero or held it
    // already.
    TestMatrix huge = Normal(300, 300, 1);
    for (float& value : huge.values) value = value < 0 ? -3e38f : 3e38f;
    ASSERT_NO_FATAL_FAILURE(Multiply(huge, huge, DType::kF32, {"--algorithm", "direct"}));
  }

  // Multiplies through files and agmmctl, which connects to the last node.
  TestMatrix Multiply(const TestMatrix& a, const TestMatrix& b, DType file_dtype,
                      std::vector<std::string> flags) {
    WriteNpy(world_.Path("A.npy"), a, file_dtype);
    WriteNpy(world_.Path("B.npy"), b, file_dtype);
    const std::string out = world_.Path(absl::StrCat("C", ++products_, ".npy"));
    last_ = world_.Ctl(std::get<0>(GetParam()) - 1,
                       std::vector<std::string>{"matmul", world_.Path("A.npy"),
                                                world_.Path("B.npy"), "--out", out} +
                           flags);
    EXPECT_EQ(last_.exit_code, 0) << last_.err;
    EXPECT_EQ(last_.err, "");
    return last_.exit_code == 0 ? ReadNpy(out) : TestMatrix();
  }

  World world_;
  Ran last_;
  int products_ = 0;
};

TEST_P(MatmulOn, SmallIntegersAreExactWithEveryAlgorithm) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  for (const Case& c :
       {Case{1, 61, 333}, Case{97, 61, 333}, Case{1000, 61, 333}, Case{5, 3, 7}, Case{1, 1, 1}}) {
    const TestMatrix a = SmallIntegers(c.m, c.k, seed), b = SmallIntegers(c.k, c.n, seed + 1);
    const TestMatrix want = MatrixProduct(a, b);
    std::vector<std::vector<std::string>> asked = {{"--algorithm", "serial"},
                                                   {"--algorithm", "ring", "--chunks", "3"},
                                                   {"--algorithm", "direct", "--chunks", "2"},
                                                   {"--algorithm", "auto", "--repeat", "3"}};
    if (std::get<0>(GetParam()) == 1) asked.push_back({"--algorithm", "peer", "--repeat", "20"});
    for (const std::vector<std::string>& flags : asked) {
      EXPECT_TRUE(SameBits(Multiply(a, b, DType::kF32, flags), want))
          << c.m << " x " << c.n << " x " << c.k << " " << flags[1];
    }
  }
}

TEST_P(MatmulOn, PeerLoadsReachNoOtherNode) {
  if (std::get<0>(GetParam()) == 1) GTEST_SKIP() << "there is no other node";
  WriteNpy(world_.Path("A.npy"), SmallIntegers(97, 33, 1));
  WriteNpy(world_.Path("B.npy"), SmallIntegers(33, 61, 2));
  const Ran ran = world_.Ctl(0, {"matmul", world_.Path("A.npy"), world_.Path("B.npy"), "--out",
                                 world_.Path("C.npy"), "--algorithm", "peer"});
  EXPECT_EQ(ran.exit_code, 2) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("algorithm peer reads from the memory of one node"));
}

TEST_P(MatmulOn, ConcurrentClientsDoNotInterfere) {
  const int nodes = std::get<0>(GetParam());
  const TestMatrix a = SmallIntegers(97, 333, 1), b = SmallIntegers(333, 61, 2),
                   want = MatrixProduct(a, b);
  WriteNpy(world_.Path("A.npy"), a);
  WriteNpy(world_.Path("B.npy"), b);
  std::vector<std::unique_ptr<Process>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(world_.StartCtl(
        i % nodes, {"matmul", world_.Path("A.npy"), world_.Path("B.npy"), "--out",
                    world_.Path(absl::StrCat("at-once-", i, ".npy")), "--repeat", "50"}));
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(clients[i]->Wait(kPatience), 0) << clients[i]->err();
    EXPECT_TRUE(SameBits(ReadNpy(world_.Path(absl::StrCat("at-once-", i, ".npy"))), want));
  }
}

TEST_P(MatmulOn, NarrowTypesRoundTheExactSumOnce) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  const TestMatrix a = SmallIntegers(33, 150, seed), b = SmallIntegers(150, 41, seed + 1);
  const TestMatrix want = MatrixProduct(a, b);
  EXPECT_TRUE(
      SameBits(Multiply(a, b, DType::kF32, {"--dtype", "bf16"}), Rounded(want, DType::kBF16)));
  EXPECT_TRUE(
      SameBits(Multiply(a, b, DType::kF32, {"--dtype", "f16"}), Rounded(want, DType::kF16)));
  EXPECT_TRUE(SameBits(Multiply(a, b, DType::kF16, {}), Rounded(want, DType::kF16)));
  EXPECT_THAT(last_.out, HasSubstr(" f16  mesh"));
  EXPECT_TRUE(SameBits(Multiply(a, b, DType::kF16, {"--dtype", "f32"}), want));
}

TEST_P(MatmulOn, AResultOfF32KeepsTheSumOfNarrowInputs) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  const TestMatrix a = SmallIntegers(33, 150, seed), b = SmallIntegers(150, 41, seed + 1);
  const TestMatrix want = MatrixProduct(a, b);
  ASSERT_FALSE(SameBits(Rounded(want, DType::kBF16), want));
  const std::string spec = "A[M_x,K] * B[K,N_x] -> C[M,N_x]:f32";
  EXPECT_TRUE(SameBits(Multiply(a, b, DType::kF32, {"--dtype", "bf16", "--spec", spec}), want));
  EXPECT_THAT(last_.out, HasSubstr(":f32  M=33 N=41 K=150 bf16 -> f32  mesh"));
  EXPECT_TRUE(SameBits(Multiply(a, b, DType::kF16, {"--spec", spec, "--json"}), want));
  const Json json = Json::parse(last_.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << last_.out;
  EXPECT_EQ(json["dtype"], "f16");
  EXPECT_EQ(json["result_dtype"], "f32");
  EXPECT_EQ(json["out_dtype"], "f32");
}

TEST_P(MatmulOn, RandomMatricesAreWithinTheErrorBoundOfFloat64) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  const TestMatrix a = Normal(97, 301, seed), b = Normal(301, 83, seed + 1);
  const TestMatrix ring = Multiply(a, b, DType::kF32, {"--algorithm", "ring"});
  EXPECT_TRUE(IsProductOf(ring, a, b));
  EXPECT_TRUE(IsProductOf(Multiply(a, b, DType::kF32, {"--algorithm", "serial"}), a, b));
}

TEST_P(MatmulOn, CompareGivesConsistentFigures) {
  const int ranks = std::get<0>(GetParam()) * std::get<1>(GetParam());
  const TestMatrix a = SmallIntegers(64, 48, 7), b = SmallIntegers(48, 40, 8);
  EXPECT_TRUE(SameBits(Multiply(a, b, DType::kF32, {"--compare", "--repeat", "3", "--json"}),
                       MatrixProduct(a, b)));
  const Json json = Json::parse(last_.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << last_.out;
  EXPECT_EQ(json["mesh"], absl::StrCat("x=", ranks));
  EXPECT_EQ(json["plan_agrees"], true);
  EXPECT_EQ(json["shared_host"], ranks > 1);
  EXPECT_EQ(json["runs_ms"].size(), 3u);
  const Json& figures = json["comparison"];
  ASSERT_TRUE(figures["fused_ms"].is_number() && figures["unfused_ms"].is_number()) << last_.out;
  const double fused = figures["fused_ms"], unfused = figures["unfused_ms"];
  EXPECT_GT(fused, 0);
  EXPECT_DOUBLE_EQ(figures["speedup"], unfused / fused);
  ASSERT_TRUE(figures["gemm_ms"].is_number()) << last_.out;
  if (ranks == 1) {
    EXPECT_TRUE(figures["gather_ms"].is_null()) << "nothing moves in a world of one device";
    EXPECT_TRUE(figures["ratio"].is_null());
    return;
  }
  ASSERT_TRUE(figures["gather_ms"].is_number()) << last_.out;
  const double gemm = figures["gemm_ms"], gather = figures["gather_ms"],
               bound = std::max(gemm, gather);
  EXPECT_DOUBLE_EQ(figures["lower_bound_ms"], bound);
  EXPECT_DOUBLE_EQ(figures["ratio"], bound / fused);
}

TEST_P(MatmulOn, SessionsLeaveNothingBehind) {
  const TestMatrix a = SmallIntegers(64, 48, 7), b = SmallIntegers(48, 40, 8);
  Multiply(a, b, DType::kF32, {});
  EXPECT_TRUE(
      world_.WaitFor(0, "its tensors' bytes back", [&](const v1::GetStatusResponse& status) {
        int64_t tensor_bytes = 0, workspace_bytes = 0, heap_bytes = 0;
        for (const v1::NodeStatus& node : status.nodes()) {
          for (const v1::DeviceStatus& device : node.devices()) {
            tensor_bytes += device.tensor_bytes() + device.held_bytes();
            workspace_bytes += device.workspace_bytes();
            heap_bytes += device.heap_bytes();
          }
        }
        return tensor_bytes == 0 && FreeBytes(status) + workspace_bytes == heap_bytes;
      }));
}

TEST_P(MatmulOn, StatusShowsTheWorld) {
  const int nodes = std::get<0>(GetParam()), ranks = nodes * std::get<1>(GetParam());
  for (int node = 0; node < nodes; ++node) {
    const Ran text = world_.Ctl(node, {"status"});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("  ready\n"));
    EXPECT_THAT(text.out, HasSubstr("insecure: "));
    const Ran ran = world_.Ctl(node, {"--json", "status"});
    const Json json = Json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object()) << ran.out;
    EXPECT_EQ(json["answering_node"], node);
    EXPECT_EQ(json["sequencer_node"], 0);
    EXPECT_EQ(json["nodes"].size(), static_cast<size_t>(nodes));
    EXPECT_EQ(json["nodes"].back()["devices"].back()["rank"], ranks - 1);
    EXPECT_EQ(json["nodes"][0]["incarnation"].get<std::string>().size(), 32u);
    EXPECT_NE(json["version"], "");
    for (const Json& each : json["nodes"]) EXPECT_EQ(each["version"], json["version"]);
    EXPECT_THAT(text.out, HasSubstr("\nversion " + json["version"].get<std::string>() + "\n"));
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, MatmulOn,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "Daemons",
                                               std::get<1>(info.param), "Devices");
                         });

}  // namespace
}  // namespace agmm
