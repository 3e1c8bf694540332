// The daemon with the distribution's UCX, which is older than the one that it was built with.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(UcxVersions, TheDistributionsUcxMovesAndMultiplies) {
  const std::string folder = AGMM_DISTRIBUTION_UCX;
  if (folder.empty())
    GTEST_SKIP() << "the distribution's UCX is not installed, or is the one of the build";
  WorldOptions options{.nodes = 3, .devices = 2};
  options.environment["LD_LIBRARY_PATH"] = folder;
  World world(options);
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  const TestMatrix a = SmallIntegers(700, 500, 1), b = SmallIntegers(500, 600, 2);
  WriteNpy(world.Path("A.npy"), a);
  WriteNpy(world.Path("B.npy"), b);
  for (const char* algorithm : {"ring", "direct", "serial"}) {
    const Ran ran = world.Ctl(2, {"matmul", world.Path("A.npy"), world.Path("B.npy"), "--out",
                                  world.Path("C.npy"), "--algorithm", algorithm});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_TRUE(SameBits(ReadNpy(world.Path("C.npy")), MatrixProduct(a, b))) << algorithm;
  }
  // The new generation creates a new transport.
  world.Kill(1);
  world.Start(1);
  for (int node = 0; node < 3; ++node) ASSERT_TRUE(world.WaitReady(node));
  const Ran ran = world.Ctl(
      0, {"matmul", world.Path("A.npy"), world.Path("B.npy"), "--out", world.Path("C.npy")});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(SameBits(ReadNpy(world.Path("C.npy")), MatrixProduct(a, b)));
  const Ran shown = world.Ctl(0, {"job", "show", "1"});
  EXPECT_THAT(shown.out, HasSubstr("ucx 1."));
  EXPECT_THAT(shown.out, Not(HasSubstr("ucx " AGMM_UCX_VERSION)));
}

}  // namespace
}  // namespace agmm
