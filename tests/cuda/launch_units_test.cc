// The launches that a CUDA device makes of a schedule.
#include "kernels/cuda/launch_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/failpoint.h"
#include "kernels/cuda/cuda_program.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "tests/cuda/program_peers.h"

namespace agmm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

struct Asked {
  const char* spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";
  const char* algorithm = "ring";
  int ranks = 4, nodes = 1;
  Shape shape = {1024, 512, 256};
  DType dtype = DType::kBF16;
  int chunks = 1, k_chunks = 1;
  bool carried = false;
  const char* split = "N=x";
  int sms = 132, clusters = 0, tenants = 1;
  bool reaches_all = true;
};

std::unique_ptr<ProgramPeers> PeersOf(const Asked& asked) {
  const Problem problem =
      ParseProblem(asked.spec, ParseMesh("x=" + std::to_string(asked.ranks)).value(), asked.shape,
                   asked.dtype)
          .value();
  PlanOptions options;
  options.algorithm = asked.algorithm;
  options.chunks = asked.chunks;
  options.k_chunks = asked.k_chunks;
  options.carried = asked.carried;
  options.split = asked.split;
  auto peers = std::make_unique<ProgramPeers>(
      problem, UniformTopology(asked.ranks, asked.nodes).value(), options);
  for (CudaPeer& peer : peers->cuda) {
    peer.sms = asked.sms;
    peer.clusters = asked.clusters;
    peer.tenants = asked.tenants;
    peer.reaches_all = asked.reaches_all;
  }
  return peers;
}

CudaProgram ProgramOf(const Asked& asked) {
  const std::unique_ptr<ProgramPeers> peers = PeersOf(asked);
  return LowerForCuda(peers->plan(), peers->cuda).value();
}

std::vector<const ProductLaunch*> LaunchesOf(const CudaProgram& program) {
  std::vector<const ProductLaunch*> launches;
  for (const LaunchUnit& unit : program.units) {
    if (unit.product.has_value()) launches.push_back(&*unit.product);
  }
  return launches;
}

int CountPolled(const CudaProgram& program) {
  return static_cast<int>(std::count(program.polled.begin(), program.polled.end(), true));
}

TEST(LaunchUnits, AGatherIsOneKernelThatWaitsForAllButTheFirstChunk) {
  const CudaProgram program = ProgramOf({});
  const auto launches = LaunchesOf(program);
  ASSERT_THAT(launches, SizeIs(1));
  EXPECT_THAT(launches[0]->blocks, SizeIs(4));
  EXPECT_THAT(launches[0]->pieces[0].slots, IsEmpty());
  for (int piece = 1; piece < 4; ++piece) EXPECT_THAT(launches[0]->pieces[piece].slots, SizeIs(1));
  EXPECT_FALSE(launches[0]->in_group);
  EXPECT_EQ(CountPolled(program), 3);
  EXPECT_THAT(program.products, ElementsAre("agmm_product_bf16_bf16_128"));
}

TEST(LaunchUnits, EveryStepIsInOneUnitOfItsLane) {
  for (const char* algorithm : {"serial", "ring", "bidirectional_ring", "direct", "peer"}) {
    const CudaProgram program = ProgramOf({.algorithm = algorithm, .chunks = 1});
    std::vector<int> units(program.steps.size(), 0);
    for (size_t lane = 0; lane < program.lanes.size(); ++lane) {
      for (const int index : program.lanes[lane]) {
        const LaunchUnit& unit = program.units[index];
        EXPECT_EQ(unit.lane, static_cast<int>(lane));
        for (const int step : unit.steps) {
          ++units[step];
          EXPECT_EQ(program.unit_of_step[step], index);
        }
      }
    }
    EXPECT_THAT(units, testing::Each(1)) << algorithm;
  }
}

// A kernel that polled what its first product awaits would hold its SMs for nothing.
TEST(LaunchUnits, AWaitIsAnEventOfItsUnitOrIsPolledByALaterProduct) {
  int polled = 0, first = 0;
  for (const char* spec : {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "A[M, K_x] * B[K_x, N] -> C[M, N]",
                           "A[M, K_x] * B[K, N_x] -> C[M, N_x]"}) {
    for (const char* split : {"", "M=x"}) {
      const CudaProgram program = ProgramOf({.spec = spec, .k_chunks = 2, .split = split});
      for (const LaunchUnit& unit : program.units) {
        std::set<int> slots;
        if (unit.product.has_value()) {
          EXPECT_THAT(unit.product->pieces[0].slots, IsEmpty());
          for (const ProductPiece& piece : unit.product->pieces)
            slots.insert(piece.slots.begin(), piece.slots.end());
        }
        polled += static_cast<int>(slots.size());
        for (const Wait& wait : unit.waits) {
          const bool polls = wait.lag == 0 && slots.count(wait.slot.index) > 0;
          EXPECT_THAT(unit.events, testing::Contains(wait).Times(polls ? 0 : 1));
          first += unit.product.has_value() && wait.lag == 0 && !polls;
        }
      }
    }
  }
  EXPECT_GT(polled, 0);
  EXPECT_GT(first, 0);
}

TEST(LaunchUnits, KernelsSendTheChunksOfACarriedRing) {
  const CudaProgram program = ProgramOf({.carried = true});
  const auto launches = LaunchesOf(program);
  ASSERT_THAT(launches, SizeIs(1));
  std::vector<size_t> sends;
  for (const ProductPiece& piece : launches[0]->pieces) sends.push_back(piece.sends.size());
  EXPECT_THAT(sends, ElementsAre(1, 1, 1, 0));
  EXPECT_TRUE(launches[0]->in_group);
  EXPECT_THAT(program.products, ElementsAre("agmm_ring_bf16_bf16_128"));
  // No copy is left.
  EXPECT_THAT(program.units, SizeIs(1));
}

TEST(LaunchUnits, AChunkTravelsBothWaysFromOneKernel) {
  const CudaProgram program = ProgramOf({.algorithm = "bidirectional_ring", .carried = true});
  EXPECT_THAT(LaunchesOf(program)[0]->pieces[0].sends, SizeIs(2));
}

TEST(LaunchUnits, AChunkThatLeavesTheNodeIsCopiedOnItsWholeWay) {
  const CudaProgram program = ProgramOf({.nodes = 2, .carried = true});
  // The chunks of ranks 0 and 1 go through rank 0 to another node, or end there.
  for (const ProductLaunch* launch : LaunchesOf(program)) {
    for (const ProductPiece& piece : launch->pieces) EXPECT_THAT(piece.sends, IsEmpty());
  }
  EXPECT_THAT(program.products, testing::Contains(testing::StartsWith("copied, not carried: ")));
}

// Rank 1 sends three chunks to rank 0, which passes all but the last one on to the other node.
TEST(LaunchUnits, AKernelSendsOnlyWhatEndsAtItsReceiver) {
  const auto peers = PeersOf({.nodes = 2, .carried = true});
  peers->peers.self = 1;
  const CudaProgram program = LowerForCuda(peers->plan(), peers->cuda).value();
  std::vector<int> sends;
  for (const ProductLaunch* launch : LaunchesOf(program)) {
    for (const ProductPiece& piece : launch->pieces)
      sends.insert(sends.end(), piece.sends.begin(), piece.sends.end());
  }
  ASSERT_THAT(sends, SizeIs(1));
  // The chunk of rank 3 has come from the other node.
  const Step& sent = peers->schedule->ranks[1][sends[0]];
  EXPECT_EQ(std::get<Transfer>(sent.op).block.rows.begin, 768);
}

TEST(LaunchUnits, NothingIsCarriedToAGpuThatTakesCopiesThroughPinnedMemory) {
  const CudaProgram program = ProgramOf({.carried = true, .reaches_all = false});
  for (const ProductLaunch* launch : LaunchesOf(program)) EXPECT_FALSE(launch->in_group);
  EXPECT_THAT(program.products,
              testing::Contains(testing::StartsWith(
                  "copied, not carried: GPU 0 takes copies of other jobs through pinned memory")));
}

TEST(LaunchUnits, NothingIsCarriedIfCopiesWaitForProducts) {
  // C travels in the epoch that makes it.
  const CudaProgram program =
      ProgramOf({.spec = "A[M_x, K] * B[K, N] -> C[M, N]", .carried = true});
  for (const ProductLaunch* launch : LaunchesOf(program)) EXPECT_FALSE(launch->in_group);
  EXPECT_THAT(program.products,
              testing::Contains("copied, not carried: copies wait for products of rank 0 in the "
                                "same epoch"));
}

TEST(LaunchUnits, AKernelSendsAChunkToTwoRanksAtMost) {
  const CudaProgram program = ProgramOf({.algorithm = "direct", .carried = true});
  EXPECT_THAT(LaunchesOf(program)[0]->pieces[0].sends, SizeIs(2));
  EXPECT_THAT(program.products,
              testing::Contains("copied, not carried: a kernel sends a chunk to at most 2 ranks"));
}

TEST(LaunchUnits, NothingIsCarriedWhereAnotherDeviceSharesTheGpu) {
  const CudaProgram program = ProgramOf({.carried = true, .tenants = 2});
  for (const ProductLaunch* launch : LaunchesOf(program)) EXPECT_FALSE(launch->in_group);
  EXPECT_THAT(program.products,
              testing::Contains("copied, not carried: GPU 0 runs 2 devices, so a kernel could wait "
                                "for one that is behind it"));
}

TEST(LaunchUnits, KernelsThatWaitShareTheGpuAndLeaveSmsToOthers) {
  const auto ctas = [](int tenants) {
    return LaunchesOf(ProgramOf({.shape = {131072, 4096, 256}, .tenants = tenants}))[0]
        ->config.ctas;
  };
  EXPECT_EQ(ctas(1), 132 - 4);
  EXPECT_EQ(ctas(2), (132 - 4) / 2);
  EXPECT_EQ(ctas(8), (132 - 4) / 8);
  // Kernels that wait for nothing end by themselves.
  EXPECT_EQ(
      LaunchesOf(ProgramOf({.algorithm = "serial", .shape = {131072, 4096, 256}, .tenants = 8}))[0]
          ->config.ctas,
      132);
}

TEST(LaunchUnits, ClustersComputeBlocksThatHaveAnEvenNumberOfRowsOfTiles) {
  const auto config = [](const Asked& asked) { return LaunchesOf(ProgramOf(asked))[0]->config; };
  // 4 chunks of 8,192 rows, and 16 columns of tiles.
  const Asked asked = {.shape = {32768, 16384, 4096}, .clusters = 66};
  EXPECT_EQ(config(asked).kernel, "agmm_product_bf16_bf16_256_2");
  EXPECT_EQ(config(asked).ctas, 132 - 4);
  const auto changed = [&](auto change) {
    Asked other = asked;
    change(other);
    return config(other);
  };
  EXPECT_EQ(changed([](Asked& one) { one.algorithm = "serial"; }).ctas, 132)
      << "a kernel that waits for nothing leaves no SM to others";
  EXPECT_EQ(changed([](Asked& one) { one.carried = true; }).kernel, "agmm_ring_bf16_bf16_256_2");
  EXPECT_EQ(changed([](Asked& one) { one.tenants = 2; }).cluster, 1);
  EXPECT_EQ(changed([](Asked& one) { one.clusters = 0; }).cluster, 1);
  EXPECT_EQ(changed([](Asked& one) { one.clusters = 48; }).cluster, 1) << "more rounds";
  EXPECT_EQ(changed([](Asked& one) { one.shape.m -= 4 * 128; }).cluster, 1) << "63 rows of tiles";
}

TEST(LaunchUnits, ATraceHasARecordForEachTileOfAClusterToo) {
  constexpr char kClusters[] = "products.clusters";  // for all blocks
  failpoint::Arm(kClusters);
  // 4 chunks of 3 rows of tiles, with one more that lies below.
  const CudaProgram program = ProgramOf({.shape = {4 * 384, 1024, 64}, .clusters = 66});
  failpoint::Disarm(kClusters);
  const ProductLaunch& launch = *LaunchesOf(program)[0];
  EXPECT_EQ(launch.config.kernel, "agmm_product_bf16_bf16_256_2");
  EXPECT_EQ(launch.config.ctas % 2, 0);
  for (int block = 0; block < 4; ++block) EXPECT_EQ(launch.blocks[block].first_tile, 4 * block);
  EXPECT_EQ(launch.tiles, 16);
}

TEST(LaunchUnits, PartsOfASumAreOneBlock) {
  const CudaProgram program = ProgramOf({.ranks = 2, .k_chunks = 4});
  const auto launches = LaunchesOf(program);
  ASSERT_THAT(launches, SizeIs(1));
  EXPECT_THAT(launches[0]->blocks, SizeIs(2));
  EXPECT_THAT(launches[0]->pieces, SizeIs(8));
}

TEST(LaunchUnits, AProductThatACopyAwaitsEndsItsLaunch) {
  // C is made beside its shard, and travels while the next block is made.
  const CudaProgram program = ProgramOf({.spec = "A[M_x, K] * B[K, N] -> C[M, N]",
                                         .algorithm = "direct",
                                         .chunks = 2,
                                         .split = "M=x"});
  for (const ProductLaunch* launch : LaunchesOf(program)) EXPECT_THAT(launch->blocks, SizeIs(1));
}

TEST(LaunchUnits, OtherProductsStayWithCublasLtAndSayWhy) {
  EXPECT_THAT(ProgramOf({.dtype = DType::kF32}).products, ElementsAre("cuBLASLt: products of f32"));
  EXPECT_THAT(ProgramOf({.shape = {256, 512, 256}}).products,
              ElementsAre("cuBLASLt: products of at most 64 rows"));
  EXPECT_THAT(ProgramOf({.sms = 0}).products,
              ElementsAre("cuBLASLt: products of a device without kernels for them"));
}

TEST(LaunchUnits, ALaunchHasNoMorePiecesThanItsArguments) {
  const CudaProgram program = ProgramOf({.ranks = 8, .shape = {8192, 512, 64}, .chunks = 8});
  const auto launches = LaunchesOf(program);
  EXPECT_THAT(launches, SizeIs(2));
  for (const ProductLaunch* launch : launches)
    EXPECT_LE(launch->pieces.size(), static_cast<size_t>(sm90::kMaxPieces));
}

}  // namespace
}  // namespace agmm
