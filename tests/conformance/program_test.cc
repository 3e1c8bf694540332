// The program that the CPU device derives from a schedule.
#include "kernels/cpu/program.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/units.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

class NoTransport final : public Transport {
 public:
  void Send(int, const Message&, Rows, std::function<void(absl::Status)>) override { FAIL(); }
};

// Returns the bytes that rank 0 pushes to the other node, and the bytes that it sends. A is [4096,
// k] bf16 over two nodes of `ranks_of_node`.
std::pair<int64_t, int64_t> PushedAndSent(int ranks_of_node, int64_t k, int chunks) {
  const int ranks = 2 * ranks_of_node;
  const Problem problem =
      ParseProblem("A[M_x, K] * B[K, N_x] -> C[M, N_x]",
                   ParseMesh(absl::StrCat("x=", ranks)).value(), Shape{4096, 64, k}, DType::kBF16)
          .value();
  PlanOptions options;
  options.algorithm = "direct";
  options.split = "N=x";  // gathers A
  options.chunks = chunks;
  const Schedule schedule = Plan(problem, UniformTopology(ranks, 2).value(), options).value();
  const auto device = *CreateCpuDevice(1);
  const auto heap = device->CreateHeap(64 << 20).value();
  const auto executor = device->CreateExecutor();
  NoTransport transport;
  Peers peers;
  peers.transport = &transport;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool here = rank < ranks_of_node;
    peers.nodes.push_back(here ? 0 : 1);
    peers.heaps.push_back(here ? heap.get() : nullptr);
    peers.executors.push_back(here ? executor.get() : nullptr);
  }
  GemmLibrary library(1);
  const Program program =
      MakeProgram({problem, std::make_shared<const Schedule>(schedule), peers}, 1, library).value();
  int64_t pushed = 0, sent = 0;
  for (const ProgramStep& step : program.steps) {
    const auto* copy = std::get_if<CopyOp>(&step.op);
    if (copy == nullptr) continue;
    for (int part : copy->sends) {
      const int64_t bytes = copy->rows * copy->cols * SizeOf(copy->from.dtype);
      sent += bytes;
      if (copy->push[part]) pushed += bytes;
    }
  }
  return {pushed, sent};
}

TEST(Program, ASmallShardIsPushedWhole) {
  const auto [pushed, sent] = PushedAndSent(1, 256, 1);
  EXPECT_EQ(sent, 1 << 20);
  EXPECT_EQ(pushed, sent);
}

TEST(Program, TheFirstMebibyteOfALargeShardIsPushed) {
  const auto [pushed, sent] = PushedAndSent(1, 2048, 16);
  EXPECT_EQ(sent, 8 << 20);
  EXPECT_EQ(pushed, 1 << 20);
}

TEST(Program, ManyRanksOfANodeShareTheParkingBound) {
  // 32 ranks, each with 128 KiB for each of 32: half a MiB is its share.
  const auto [pushed, sent] = PushedAndSent(32, 1024, 1);
  EXPECT_EQ(sent, 32 * (128 << 10));
  EXPECT_EQ(pushed, 512 << 10);
}

}  // namespace
}  // namespace agmm
