// The kernels of kernels/cuda/sm90 on the model that executes their PTX: right, and without a
// finding, in every order.
#include "kernels/cuda/sm90/product_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/sm90/product_config.h"
#include "tests/model/ptx/program/image.h"
#include "tests/sm90/ring.h"

namespace agmm::sm90 {
namespace {

ptx::Module& Kernels() {
  static ptx::Module& module = *[] {
    std::ifstream file(AGMM_PRODUCT_FATBIN, std::ios::binary);
    std::stringstream image;
    image << file.rdbuf();
    return ptx::ParseModule(ptx::PtxInImage(image.str().data())).release();
  }();
  return module;
}

class ProductTest : public testing::TestWithParam<Case> {};

TEST_P(ProductTest, IsExactWithoutAFinding) {
  Ring ring(GetParam(), Kernels());
  for (int epoch = 1; epoch <= GetParam().epochs; ++epoch) {
    ring.Run(epoch);
    EXPECT_EQ(ring.CountWrong(), 0) << "epoch " << epoch;
    EXPECT_THAT(ring.world().races.findings(), testing::IsEmpty());
  }
}

std::vector<Case> Shapes() {
  return {
      {.name = "OneTile", .rows = {128}, .n = 128, .k = 64},
      {.name = "OneElement", .rows = {1}, .n = 1, .k = 1, .odd = true},
      {.name = "Ragged", .rows = {136}, .n = 136, .k = 72, .ctas = 1},
      {.name = "F16",
       .element = Element::kF16,
       .out = Element::kF16,
       .rows = {200},
       .n = 136,
       .k = 136},
      {.name = "F16ToF32",
       .element = Element::kF16,
       .out = Element::kF32,
       .rows = {200},
       .n = 137,
       .k = 136,
       .odd = true},
      {.name = "BF16ToF32", .out = Element::kF32, .rows = {130}, .n = 130, .k = 200},
      {.name = "Wide", .tile_cols = 256, .rows = {200, 129}, .n = 520, .k = 328},
      {.name = "WideF16",
       .element = Element::kF16,
       .out = Element::kF16,
       .tile_cols = 256,
       .rows = {128},
       .n = 300,
       .k = 72,
       .odd = true},
      {.name = "E4M3",
       .element = Element::kE4M3,
       .out = Element::kF32,
       .rows = {200},
       .n = 136,
       .k = 272},
      {.name = "Chunks", .rows = {200, 129, 7}, .n = 200, .k = 136},
      {.name = "ChunksAtOddColumns", .rows = {200, 129, 7}, .n = 201, .k = 137, .odd = true},
      {.name = "PartsOfK", .rows = {64, 100, 7}, .n = 136, .k = 200, .along_k = true},
      {.name = "Bands", .rows = {640}, .n = 384, .k = 64, .ctas = 3, .raster_rows = 2},
  };
}

std::vector<Case> InClusters(std::vector<Case> cases) {
  for (Case& product : cases) {
    product.tile_cols = kWide;
    product.cluster = kPair;
  }
  return cases;
}

// Two CTAs share B. Some blocks have an odd number of rows of tiles, so the second CTA computes one
// that lies below.
std::vector<Case> Clusters() {
  std::vector<Case> cases = {
      {.name = "ClusterOfF16",
       .element = Element::kF16,
       .out = Element::kF16,
       .rows = {256},
       .n = 300,
       .k = 328,
       .odd = true},
      {.name = "ClustersInBands",
       .rows = {520, 200, 7},
       .n = 264,
       .k = 72,
       .ctas = 4,
       .raster_rows = 2},
      {.name = "ClusterGathers",
       .gpus = 3,
       .rows = {200, 64, 130},
       .n = 137,
       .k = 72,
       .odd = true,
       .epochs = 2,
       .delivered = true},
      {.name = "ClusterGathersPartsOfK",
       .gpus = 3,
       .rows = {64, 130, 7},
       .n = 72,
       .k = 200,
       .delivered = true,
       .along_k = true},
      {.name = "ClustersInARing",
       .gpus = 2,
       .rows = {300, 129},
       .n = 264,
       .k = 136,
       .ctas = 4,
       .send_columns = 2},
      {.name = "ClusterWithCredits",
       .gpus = 3,
       .rows = {256, 64, 129},
       .n = 72,
       .k = 72,
       .epochs = 3,
       .credits = true},
      {.name = "ClustersBothWaysWithPartsOfK",
       .gpus = 3,
       .rows = {64, 100, 7},
       .n = 264,
       .k = 130,
       .ctas = 4,
       .send_columns = 2,
       .epochs = 2,
       .credits = true,
       .both_ways = true,
       .along_k = true},
  };
  return InClusters(std::move(cases));
}

std::vector<Case> Rings() {
  return {
      {.name = "TwoGpus", .gpus = 2, .rows = {200, 129}, .n = 200, .k = 136},
      {.name = "TwoGpusWide", .gpus = 2, .tile_cols = 256, .rows = {384, 256}, .n = 264, .k = 328},
      {.name = "ThreeGpusAtOddColumns",
       .gpus = 3,
       .rows = {200, 300, 64},
       .n = 201,
       .k = 137,
       .odd = true,
       .ctas = 3},
      {.name = "FourGpusTwoEpochs",
       .gpus = 4,
       .rows = {300, 128, 200, 1},
       .n = 136,
       .k = 200,
       .ctas = 3,
       .epochs = 2},
      {.name = "FourGpusThatShareTheSending",
       .gpus = 4,
       .rows = {256, 128, 200, 64},
       .n = 384,
       .k = 264,
       .ctas = 3,
       .send_columns = 2},
      {.name = "FourGpusInBands",
       .gpus = 4,
       .rows = {600, 128, 200, 64},
       .n = 264,
       .k = 136,
       .ctas = 3,
       .raster_rows = 2},
      {.name = "EightGpus",
       .gpus = 8,
       .rows = {64, 128, 1, 32, 130, 64, 128, 64},
       .n = 128,
       .k = 72},
      {.name = "ThreeGpusWhoseChunksAreCopied",
       .gpus = 3,
       .rows = {200, 64, 129},
       .n = 137,
       .k = 136,
       .odd = true,
       .epochs = 2,
       .delivered = true},
      {.name = "ThreeGpusWhosePartsOfKAreCopied",
       .gpus = 3,
       .rows = {64, 100, 7},
       .n = 136,
       .k = 200,
       .delivered = true,
       .along_k = true},
      {.name = "ThreeGpusWithCredits",
       .gpus = 3,
       .rows = {200, 64, 129},
       .n = 136,
       .k = 136,
       .epochs = 3,
       .credits = true},
      {.name = "ThreeGpusPartsOfK",
       .gpus = 3,
       .rows = {64, 100, 7},
       .n = 136,
       .k = 200,
       .ctas = 2,
       .along_k = true},
  };
}

// Each chunk goes half the way round in each direction.
std::vector<Case> RingsBothWays() {
  return {
      {.name = "TwoGpusBothWays",
       .gpus = 2,
       .rows = {200, 129},
       .n = 136,
       .k = 136,
       .epochs = 2,
       .credits = true,
       .both_ways = true},
      {.name = "ThreeGpusBothWays",
       .gpus = 3,
       .rows = {200, 64, 129},
       .n = 264,
       .k = 136,
       .ctas = 3,
       .send_columns = 2,
       .epochs = 3,
       .credits = true,
       .both_ways = true},
      {.name = "FourGpusBothWays",
       .gpus = 4,
       .rows = {64, 128, 200, 1},
       .n = 137,
       .k = 137,
       .odd = true,
       .epochs = 2,
       .credits = true,
       .both_ways = true},
      {.name = "FiveGpusBothWays",
       .gpus = 5,
       .rows = {64, 130, 7, 64, 128},
       .n = 72,
       .k = 72,
       .epochs = 3,
       .credits = true,
       .both_ways = true},
      {.name = "FiveGpusPartsOfKBothWays",
       .gpus = 5,
       .rows = {64, 100, 7, 64, 72},
       .n = 72,
       .k = 130,
       .epochs = 2,
       .credits = true,
       .both_ways = true,
       .along_k = true},
  };
}

// Each case in random orders, late, eager, and with a CTA that starves.
std::vector<Case> InOrders(const std::vector<Case>& cases) {
  std::vector<Case> all;
  const auto add = [&](Case product, const std::string& order, const ptx::RunOptions& options) {
    product.name += order;
    product.options = options;
    product.options.instruction_limit = 20'000'000;
    all.push_back(product);
  };
  for (const Case& product : cases) {
    add(product, "Random1", {.seed = 1});
    if (product.cluster == 1) add(product, "Random2", {.seed = 2});
    add(product, "Late", {.seed = 3, .mode = ptx::Mode::kLate});
    add(product, "Eager", {.seed = 4, .mode = ptx::Mode::kEager});
    if (product.gpus > 1) add(product, "Starved", {.seed = 5, .starved_gpu = 1, .starved_cta = 0});
    if (product.cluster > 1) {
      add(product, "PartnerStarved",
          {.seed = 6, .starved_gpu = product.gpus - 1, .starved_cta = 1});
    }
  }
  return all;
}

std::string NameOfCase(const testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Shapes, ProductTest, testing::ValuesIn(InOrders(Shapes())), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Rings, ProductTest, testing::ValuesIn(InOrders(Rings())), NameOfCase);
INSTANTIATE_TEST_SUITE_P(RingsBothWays, ProductTest, testing::ValuesIn(InOrders(RingsBothWays())),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Clusters, ProductTest, testing::ValuesIn(InOrders(Clusters())),
                         NameOfCase);

class AbortTest : public testing::TestWithParam<Case> {};

TEST_P(AbortTest, AMissingCreditStopsTheSendingAndTheAbortWordEndsTheKernels) {
  Case product = GetParam();
  product.mistake = Mistake::kCreditMissing;
  EXPECT_THAT([&] { Ring(product, Kernels()).Run(1); },
              testing::ThrowsMessage<ptx::Stop>(testing::HasSubstr("deadlock")));
  product.aborted = true;
  Ring ring(product, Kernels());
  ring.Run(1);
  EXPECT_FALSE(ring.HasArrived(1, 0));
  EXPECT_THAT(ring.world().races.findings(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Rings, AbortTest,
    testing::ValuesIn(InOrders(
        {{.name = "TwoGpus", .gpus = 2, .rows = {300, 129}, .n = 264, .k = 600, .credits = true},
         {.name = "ThreeGpusBothWays",
          .gpus = 3,
          .rows = {64, 129, 64},
          .n = 136,
          .k = 72,
          .credits = true,
          .both_ways = true},
         {.name = "ThreeGpusPartsOfK",
          .gpus = 3,
          .rows = {64, 100, 7},
          .n = 136,
          .k = 200,
          .credits = true,
          .along_k = true}})),
    NameOfCase);
INSTANTIATE_TEST_SUITE_P(
    Clusters, AbortTest,
    testing::ValuesIn(InOrders(InClusters(
        {{.name = "TwoGpus", .gpus = 2, .rows = {300, 129}, .n = 136, .k = 200, .credits = true},
         {.name = "ThreeGpusPartsOfK",
          .gpus = 3,
          .rows = {64, 130, 7},
          .n = 72,
          .k = 200,
          .credits = true,
          .along_k = true}}))),
    NameOfCase);

// The abort word is set at once, and pieces arrive sooner or later than a CTA would look at it. If
// each CTA decided for itself, one could wait for the other's half of B without end.
class ClusterAbortTest : public testing::TestWithParam<Case> {};

TEST_P(ClusterAbortTest, BothCtasGiveUpAtTheSamePieceOrNot) {
  Ring ring(GetParam(), Kernels());
  ring.Run(1);
  EXPECT_THAT(ring.world().races.findings(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Pieces, ClusterAbortTest,
                         testing::ValuesIn(InOrders(InClusters({{.name = "ThreeGpus",
                                                                 .gpus = 3,
                                                                 .rows = {256, 1, 64},
                                                                 .n = 64,
                                                                 .k = 64,
                                                                 .delivered = true,
                                                                 .aborted = true}}))),
                         NameOfCase);

// Returns in how many of the orders the model has a finding.
int OrdersWithFinding(const Case& product) {
  int found = 0;
  for (const Case& ordered : InOrders({product})) {
    Ring ring(ordered, Kernels());
    for (int epoch = 1; epoch <= product.epochs; ++epoch) ring.Run(epoch);
    found += !ring.world().races.findings().empty();
  }
  return found;
}

TEST(Mistakes, OneSlotForTwoStepsIsARace) {
  Case product = {.gpus = 3, .rows = {64, 64, 64}, .n = 128, .k = 72};
  EXPECT_EQ(OrdersWithFinding(product), 0);
  product.mistake = Mistake::kOneSlotForTwoSteps;
  EXPECT_GT(OrdersWithFinding(product), 0);
}

TEST(Mistakes, ACreditThatIsRaisedEarlyIsARace) {
  Case product = {.gpus = 2, .rows = {64, 64}, .n = 128, .k = 72, .epochs = 3, .credits = true};
  EXPECT_EQ(OrdersWithFinding(product), 0);
  product.mistake = Mistake::kCreditRaisedEarly;
  EXPECT_GT(OrdersWithFinding(product), 0);
}

// Returns how often %globaltimer has been read.
int64_t ReadsOfTheTime() {
  int64_t reads = 0;
  for (const auto& [name, kernel] : Kernels().kernels) {
    for (const ptx::Instruction& instruction : kernel->instructions) {
      if (instruction.text.find("%globaltimer") != std::string::npos)
        reads += instruction.counts.runs;
    }
  }
  return reads;
}

class TraceTest : public testing::TestWithParam<Case> {};

TEST_P(TraceTest, EveryTileHasItsTimes) {
  Case product = GetParam();
  product.traced = true;
  Ring ring(product, Kernels());
  for (int epoch = 1; epoch <= product.epochs; ++epoch) {
    ring.Run(epoch);
    EXPECT_EQ(ring.CountWrongTraces(), 0) << "epoch " << epoch;
    EXPECT_EQ(ring.CountWrong(), 0) << "epoch " << epoch;
    EXPECT_THAT(ring.world().races.findings(), testing::IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rings, TraceTest,
    testing::ValuesIn(InOrders(
        {{.name = "OneGpu", .tile_cols = 256, .rows = {200, 129}, .n = 520, .k = 72, .ctas = 3},
         {.name = "TwoGpusBothWays",
          .gpus = 2,
          .rows = {300, 129},
          .n = 264,
          .k = 72,
          .epochs = 2,
          .credits = true,
          .both_ways = true},
         {.name = "TwoGpusPartsOfK",
          .gpus = 2,
          .rows = {64, 100},
          .n = 136,
          .k = 200,
          .delivered = true,
          .along_k = true}})),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    Clusters, TraceTest,
    testing::ValuesIn(InOrders(
        InClusters({{.name = "OneGpu", .rows = {200, 129, 300}, .n = 264, .k = 72, .ctas = 4}}))),
    NameOfCase);

TEST(Trace, NoTimeIsReadWithoutOne) {
  Case product = {.gpus = 2, .rows = {200, 64}, .n = 136, .k = 72};
  const int64_t before = ReadsOfTheTime();
  Ring(product, Kernels()).Run(1);
  EXPECT_EQ(ReadsOfTheTime(), before);
  product.traced = true;
  Ring(product, Kernels()).Run(1);
  EXPECT_GT(ReadsOfTheTime(), before);
}

ProductProblem Problem(int64_t rows, int64_t cols) {
  return {.rows = rows,
          .cols = cols,
          .tiles_rows = (rows + kTileRows - 1) / kTileRows * kTileRows,
          .sms = 132};
}

TEST(ProductConfig, WideTilesAreChosenUnlessTheyTakeLonger) {
  EXPECT_EQ(ChooseProduct(Problem(4096, 4096))->kernel, "agmm_product_bf16_bf16_256");
  EXPECT_EQ(ChooseProduct(Problem(1024, 1024))->kernel, "agmm_product_bf16_bf16_128")
      << "64 tiles, not 32";
  ProductProblem sums = Problem(4096, 4096);
  sums.out = DType::kF32;
  sums.sends = true;
  EXPECT_EQ(ChooseProduct(sums)->kernel, "agmm_ring_bf16_f32_128");
}

TEST(ProductConfig, AllCtasHaveATileAndFit) {
  const auto small = ChooseProduct(Problem(300, 200));
  EXPECT_EQ(small->ctas, 6);
  for (const int tile_cols : {128, 256}) {
    EXPECT_LE(ProductKernel("bf16", "bf16", tile_cols, true).shared_bytes, 227 * 1024);
  }
}

TEST(ProductConfig, ClustersAreChosenWhereTheyComputeNoMoreAndTakeNoLonger) {
  ProductProblem problem = Problem(4096, 4096);
  problem.clusters = 66;
  EXPECT_EQ(ChooseProduct(problem)->cluster, 1) << "a block may have an odd number of rows";
  problem.even = true;
  const auto config = ChooseProduct(problem);
  EXPECT_EQ(config->kernel, "agmm_product_bf16_bf16_256_2");
  EXPECT_EQ(config->ctas, 132);
  EXPECT_EQ(config->raster_rows * config->cluster, ChooseProduct(Problem(4096, 4096))->raster_rows);
  problem.clusters = 60;
  EXPECT_EQ(ChooseProduct(problem)->cluster, 1) << "5 rounds of 256 pairs of tiles, not 4";
  problem = Problem(1024, 4096);
  problem.even = problem.sends = true;
  problem.clusters = 64;
  EXPECT_EQ(ChooseProduct(problem)->kernel, "agmm_ring_bf16_bf16_256_2");
  EXPECT_EQ(ChooseProduct(problem)->ctas, 128);
  problem.out = DType::kF32;
  EXPECT_EQ(ChooseProduct(problem)->kernel, "agmm_ring_bf16_f32_128");
}

TEST(ProductConfig, OtherProductsAreLeftToCublasLtWithTheReason) {
  const auto reason = [](ProductProblem problem) {
    return std::string(ChooseProduct(problem).status().message());
  };
  EXPECT_EQ(reason(Problem(64, 4096)), "products of at most 64 rows");
  ProductProblem other = Problem(4096, 4096);
  other.in = DType::kF32;
  EXPECT_EQ(reason(other), "products of f32");
  other.in = DType::kBF16;
  other.out = DType::kF16;
  EXPECT_EQ(reason(other), "products of bf16 with results of f16");
}

TEST(TileOrder, EveryTileOccursOnce) {
  for (const int raster_rows : {1, 2, 5, 16}) {
    const TileOrder order({.rows = 7 * kTileRows - 3, .cols = 5 * 128 - 1}, 128, raster_rows);
    ASSERT_EQ(order.count(), 35);
    std::vector<int> seen(35, 0);
    for (int i = 0; i < 35; ++i) ++seen[order.At(i).row * 5 + order.At(i).col];
    EXPECT_THAT(seen, testing::Each(1)) << raster_rows;
  }
}

TEST(TileOrder, AClusterCoversARowOfEachOfItsCtas) {
  const TileOrder order({.rows = 7 * kTileRows - 3, .cols = 5 * 256 - 1}, 256, 8, 2);
  EXPECT_EQ(order.row_tiles, 4);
  EXPECT_EQ(order.count(), 4 * 5);
}

TEST(ProductConfig, ArgumentsThatTheKernelCannotRunAreRefused) {
  auto arguments = std::make_unique<Arguments>();
  std::memset(static_cast<void*>(arguments.get()), 0, sizeof(Arguments));
  int cluster = 1;
  const auto message = [&](int ctas) {
    ProductConfig config = ProductKernel("bf16", "bf16", 256, true, cluster);
    config.ctas = ctas;
    return std::string(CheckArguments(*arguments, config).message());
  };
  EXPECT_EQ(message(132), "0 blocks; a launch has 1 to 32");
  arguments->block_count = 1;
  arguments->raster_rows = 16;
  arguments->send_columns = 4;
  arguments->blocks[0] = {.rows = 4096, .cols = 4096, .first_piece = 0, .pieces = 0};
  EXPECT_THAT(message(132), testing::HasSubstr("4096 columns and 0 pieces"));
  arguments->blocks[0].pieces = 2;
  EXPECT_THAT(message(132), testing::HasSubstr("piece 0 has k = 0"));
  uint64_t slot = 0;
  for (Piece& piece : {std::ref(arguments->pieces[0]), std::ref(arguments->pieces[1])}) {
    piece = Piece();
    piece.k = 64;
    piece.sends[0].map = 1;
  }
  arguments->pieces[1].sends[1].map = kMaxMaps;
  EXPECT_THAT(message(132), testing::HasSubstr("piece 1 is sent by map 128"));
  arguments->pieces[1].sends[1].map = 2;
  EXPECT_EQ(message(132), "") << "rows of A wait before the tiles that use them";
  // 32 rows of tiles in two bands: the second band's first column is tile 256.
  arguments->pieces[1].waits[0] = &slot;
  EXPECT_THAT(message(132), testing::HasSubstr("a tile that sends is not among the first 132"));
  arguments->raster_rows = 32;
  EXPECT_EQ(message(132), "") << "4 columns of 32 tiles";
  EXPECT_THAT(message(127), testing::HasSubstr("not among the first 127"));
  cluster = 2;
  EXPECT_EQ(message(127), "a grid of 127 CTAs in clusters of 2");
  arguments->raster_rows = 16;
  EXPECT_EQ(message(128), "") << "4 columns of 16 rows of clusters";
  EXPECT_THAT(message(126), testing::HasSubstr("not among the first 126"));
}

TEST(TileOrder, ContributorsAreTheCtasOfTheFirstColumns) {
  const TileOrder order({.rows = 4 * kTileRows, .cols = 3 * 128}, 128, 16);
  EXPECT_EQ(ContributorsOf(order, 132, 1), 4);
  EXPECT_EQ(ContributorsOf(order, 3, 1), 3);
  EXPECT_EQ(ContributorsOf(order, 132, 2), 8);
  EXPECT_EQ(ContributorsOf(TileOrder({.rows = 4 * kTileRows, .cols = 3 * 128}, 128, 2), 6, 1), 2)
      << "tiles 0, 1, 6 and 7";
}

}  // namespace
}  // namespace agmm::sm90
