// agmmctl moves what is larger than itself: its memory is its buffers, whatever the size of the
// tensor.
#include <sys/resource.h>

#include <filesystem>

#include "gtest/gtest.h"
#include "tests/e2e/world.h"

namespace agmm {
namespace {

// The most that any program that has ended had in memory.
int64_t PeakBytes() {
  rusage usage;
  EXPECT_EQ(getrusage(RUSAGE_CHILDREN, &usage), 0);
  return usage.ru_maxrss * int64_t{1024};
}

TEST(CtlMemory, StaysSmallWhileHalfAGiBMoves) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is not ours";
  // With windows of gRPC's own choice a get of this size takes 40 to 90 MB.
  constexpr int64_t kBound = 32 << 20, kRows = 4096, kCols = 32768;
  World world({.nodes = 1, .heap = "544MiB"});
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  const std::string file = world.Path("sparse.raw");
  WriteFile(file, "");
  std::filesystem::resize_file(file, kRows * kCols * 4);
  const Ran put = world.Ctl(0, {"tensor", "put", "T", file, "--shape", "4096x32768", "--dtype",
                                "f32", "--sharding", "[M, K]"});
  ASSERT_EQ(put.exit_code, 0) << put.err;
  EXPECT_LT(PeakBytes(), kBound);
  const Ran get = world.Ctl(0, {"tensor", "get", "T", world.Path("back.npy")});
  ASSERT_EQ(get.exit_code, 0) << get.err;
  EXPECT_LT(PeakBytes(), kBound);
}

}  // namespace
}  // namespace agmm
