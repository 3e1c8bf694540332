// Products of kernels that Triton generated (triton_kernels.py): right, and without a finding, in
// every order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/model/ptx/known_good/run_settings.h"
#include "tests/model/ptx/known_good/triton_product.h"

namespace ptx {
namespace {

class TritonTest : public testing::TestWithParam<RunOptions> {
 protected:
  void ExpectRight(const std::string& name) {
    const auto module =
        ModuleFromFile(std::string(AGMM_SOURCE_FOLDER "/tests/model/ptx/known_good/triton/")
                           .append(name)
                           .append(".ptx"));
    for (const int k : {TritonProduct::kK, 0}) {
      TritonProduct product(name, k);
      const auto world = product.Run(*module, GetParam());
      EXPECT_THAT(world->races.findings(), testing::IsEmpty());
      EXPECT_GE(world->counts.wgmma_flops, 2 * TritonProduct::kM * TritonProduct::kN * k);
      EXPECT_EQ(product.CountWrong(), 0);
    }
  }
};

TEST_P(TritonTest, MaskedLoadsGiveTheProduct) { ExpectRight("masked"); }
TEST_P(TritonTest, TilesOfHostMapsGiveTheProduct) { ExpectRight("tiles"); }
TEST_P(TritonTest, TilesOfMapsThatTheKernelMakesGiveTheProduct) { ExpectRight("maps"); }

std::vector<RunOptions> Orders() {
  std::vector<RunOptions> orders;
  for (uint64_t seed = 1; seed <= 3; ++seed) orders.push_back({.seed = seed});
  orders.push_back({.seed = 1, .mode = Mode::kLate});
  orders.push_back({.seed = 1, .mode = Mode::kEager});
  orders.push_back({.seed = 1, .starved_gpu = 0, .starved_cta = 1});
  return orders;
}

INSTANTIATE_TEST_SUITE_P(Orders, TritonTest, testing::ValuesIn(Orders()), [](const auto& info) {
  const RunOptions& options = info.param;
  const std::string mode = options.mode == Mode::kLate    ? "Late"
                           : options.mode == Mode::kEager ? "Eager"
                                                          : "Random";
  return mode + std::to_string(options.seed) + (options.starved_gpu >= 0 ? "Starved" : "");
});

}  // namespace
}  // namespace ptx
