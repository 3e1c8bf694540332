// The choice of options on the presets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/algorithm/container.h"
#include "kernels/predict/choose.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/machine_text.h"

namespace agmm::test {
namespace {

using ::testing::HasSubstr;

// Two nodes with two CPU devices each, on a link of `bytes_per_ns` each way.
Platform TwoByTwo(double bytes_per_ns) {
  Platform platform = {Preset("cpu-tcp").value(), UniformTopology(4, 2).value(), {}};
  platform.machine.between.rates.one_way = bytes_per_ns;
  platform.machine.between.rates.two_way = 2 * bytes_per_ns;
  return platform;
}

// At 1 Gbit/s. A shard of A has 8 MiB and crosses the link once, so 16 MiB go each way, in 134 ms.
// A plain ring sends three shards from one node to the other, in 201 ms. Products take 80 ms.
TEST(PresetChoice, OfTwoDevicesANodeOnASlowLinkIsHierarchical) {
  constexpr double kBytesPerNs = 0.125;
  const Problem problem = ParseProblem("A[M_x, K] * B[K, N_x] -> C[M, N_x]",
                                       ParseMesh("x=4").value(), {4096, 4096, 4096}, DType::kBF16)
                              .value();
  const Platform platform = TwoByTwo(kBytesPerNs);
  const double shard_ns = 1024 * 4096 * 2 / kBytesPerNs;
  const Choice choice = Choose(problem, platform, {}).value();
  EXPECT_THAT(choice.recipe.algorithm->name, HasSubstr("hierarchical")) << choice.why;
  EXPECT_GE(static_cast<double>(choice.time_ns), 2 * shard_ns);
  EXPECT_LT(static_cast<double>(choice.time_ns), 3 * shard_ns) << choice.why;
  const Choice ring = Choose(problem, platform, {.algorithm = "ring"}).value();
  EXPECT_GE(static_cast<double>(ring.time_ns), 3 * shard_ns) << ring.why;
}

TEST(PresetChoice, NamesTheNextBestAlgorithmEvenIfItIsSerial) {
  const Platform platform = {Preset("cpu-tcp").value(), UniformTopology(4, 1).value(), {}};
  std::set<std::string> next;
  for (const int64_t columns : {64, 256, 1024, 4096}) {
    const Problem problem = ParseProblem("A[M, K_x] * B[K_x, N] -> C[M, N_x]",
                                         ParseMesh("x=4").value(), {8, columns, 256}, DType::kF32)
                                .value();
    const Choice choice = Choose(problem, platform, {}).value();
    const auto other = absl::c_find_if(choice.candidates, [&](const PlanCandidate& one) {
      return one.recipe.algorithm != choice.recipe.algorithm && one.time_ns >= choice.time_ns;
    });
    ASSERT_NE(other, choice.candidates.end());
    const std::string& name = other->recipe.algorithm->name;
    EXPECT_THAT(choice.why, HasSubstr("; next " + name + " "));
    EXPECT_EQ(choice.why.find("serial"), choice.why.rfind("serial")) << choice.why;
    next.insert(name);
  }
  EXPECT_TRUE(next.contains("serial"));
}

}  // namespace
}  // namespace agmm::test
