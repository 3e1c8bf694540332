// agmmctl moves tensors larger than its memory: it needs memory for its buffers only, for any size
// of tensor.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/files/safetensors.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"

namespace agmm {
namespace {

// Runs a command and prints its peak memory in KiB. The kernel also counts the memory of a process
// before exec, which after a fork from this test would be that of the test.
constexpr char kPeakOf[] = R"(
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code))";

// Runs agmmctl, expects success, and returns its peak memory.
int64_t PeakBytesOf(const World& world, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {"/usr/bin/python3", "-c",         kPeakOf,
                                      Program("agmmctl"), "--endpoint", world.endpoint(0)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  static int runs = 0;
  Process process(command, world.Path(absl::StrCat("run", ++runs)));
  EXPECT_EQ(process.Wait(kPatience), 0) << process.err();
  int64_t peak_kib = 0;
  EXPECT_TRUE(absl::SimpleAtoi(process.out(), &peak_kib)) << process.out();
  return peak_kib * 1024;
}

TEST(CtlMemory, StaysSmallWhileHalfAGiBMoves) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is not ours";
  // With gRPC's default windows a get of this size takes 40 to 90 MB.
  constexpr int64_t kBound = 32 << 20, kRows = 4096, kCols = 32768;
  World world({.nodes = 1, .heap = "544MiB"});
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  const std::string file = world.Path("sparse.raw");
  WriteFile(file, "");
  std::filesystem::resize_file(file, kRows * kCols * 4);
  // Makes this process large, as after other tests.
  const std::vector<char> grown(2 * kBound, 'x');
  EXPECT_LT(PeakBytesOf(world, {"tensor", "put", "T", file, "--shape", "4096x32768", "--dtype",
                                "f32", "--sharding", "[M, K]"}),
            kBound);
  EXPECT_LT(PeakBytesOf(world, {"tensor", "get", "T", world.Path("back.npy")}), kBound);
}

TEST(CtlMemory, StaysSmallWhileAFileOfTensorsIsTransposed) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is not ours";
  // A stripe of a transposed tensor takes 32 MiB.
  constexpr int64_t kBound = 100 << 20, kRows = 8192, kCols = 8192;  // 256 MiB
  World world({.nodes = 1, .heap = "288MiB"});
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  const std::string file = world.Path("sparse.safetensors");
  const std::string preamble = *SafetensorsPreamble({{"T", kRows, kCols, DType::kF32}}, {});
  WriteFile(file, preamble);
  std::filesystem::resize_file(file, preamble.size() + kRows * kCols * 4);
  const std::vector<std::string> load = {"tensor", "load", file, "--rule", "*=[M, N]"};
  const std::vector<char> grown(2 * kBound, 'x');  // makes this process large
  EXPECT_LT(PeakBytesOf(world, load), kBound / 3);
  std::vector<std::string> transposed = load;
  transposed.insert(transposed.end(), {"--transpose", "*"});
  EXPECT_LT(PeakBytesOf(world, transposed), kBound);
  EXPECT_LT(PeakBytesOf(world, {"tensor", "save", world.Path("back.safetensors"), "T"}),
            kBound / 3);
}

}  // namespace
}  // namespace agmm
