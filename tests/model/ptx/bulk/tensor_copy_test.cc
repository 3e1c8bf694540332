// Copies of tensor boxes between global and shared memory.
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <numeric>

#include "tests/model/ptx/bulk/bulk_test_text.h"

namespace ptx {
namespace {

constexpr const char* kLoad =
    "@%first cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes";
constexpr const char* kStore = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group";

// A tensor of u32, unless the test changes the type.
TensorMap Map(const std::vector<uint64_t>& dims, const std::vector<uint32_t>& box) {
  TensorMap map{.type = 2, .rank = static_cast<uint8_t>(dims.size()), .element_bytes = 4};
  uint64_t stride = 4;
  for (size_t i = 0; i < dims.size(); ++i) {
    map.dims[i] = dims[i];
    map.box[i] = box[i];
    map.element_strides[i] = 1;
    stride *= dims[i];
    if (i < 4) map.strides[i] = stride;
  }
  return map;
}

std::vector<uint32_t> Numbers(size_t count, uint32_t first = 1) {
  std::vector<uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// Loads a box of u32 at these coordinates, and returns its words as they lie in shared memory.
TestRun LoadBox(const TensorMap& map, const std::vector<uint32_t>& data,
                const std::string& coordinates, const RunOptions& options = {}) {
  uint32_t words = 1;
  for (int i = 0; i < map.rank; ++i) words *= map.box[i];
  const std::string load = "@%first cp.async.bulk.tensor." + std::to_string(map.rank) +
                           "d.shared::cta.global.mbarrier::complete_tx::bytes [%data], [%map, {" +
                           coordinates + "}], [%bar];\n";
  return RunBody(
      SharedText() + LoadMapText() + ExpectText(words * 4) + load + WaitText() + CopyOutText(words),
      {.in = WithMap(map, data), .out_words = words, .options = options});
}

TEST(TensorCopy, ABoxIsLoadedLineByLine) {
  const TensorMap map = Map({24, 10}, {8, 4});
  for (const RunOptions& options : Orders()) {
    const TestRun run = LoadBox(map, Numbers(240), "5, 3", options);
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[i], 1 + (3 + i / 8) * 24 + 5 + i % 8);
  }
}

TEST(TensorCopy, OutOfBoundsElementsAreZeroAndCount) {
  const TensorMap map = Map({24, 10}, {8, 4});
  const auto expect = [&](int x, int y) {
    const TestRun run = LoadBox(map, Numbers(240), std::to_string(x) + ", " + std::to_string(y));
    ASSERT_EQ(Report(run), "");
    for (int i = 0; i < 32; ++i) {
      const int column = x + i % 8, row = y + i / 8;
      const bool inside = column >= 0 && column < 24 && row >= 0 && row < 10;
      EXPECT_EQ(run.out[i], inside ? 1 + row * 24 + column : 0) << x << " " << y << " " << i;
    }
  };
  expect(-3, 2);
  expect(20, 8);
  expect(4, -2);
  expect(24, 0);
  expect(-100, -100);
}

TEST(TensorCopy, OutOfBoundsFloatsCanBeNan) {
  TensorMap map = Map({24, 10}, {8, 4});
  map.type = 7;
  map.fill = 1;
  const TestRun run = LoadBox(map, Numbers(240), "20, 8");
  ASSERT_EQ(Report(run), "");
  EXPECT_EQ(run.out[0], 1u + 8 * 24 + 20);
  EXPECT_EQ(run.out[4], 0x7fffffffu);
  EXPECT_EQ(run.out[31], 0x7fffffffu);
}

TEST(TensorCopy, BoxesHaveUpToFiveDimensions) {
  const TensorMap map = Map({8, 3, 4, 3, 2}, {4, 2, 2, 2, 2});
  const TestRun run = LoadBox(map, Numbers(8 * 3 * 4 * 3 * 2), "3, 1, 2, 1, 0");
  ASSERT_EQ(Report(run), "");
  for (int i = 0; i < 64; ++i) {
    const int at[] = {3 + i % 4, 1 + i / 4 % 2, 2 + i / 8 % 2, 1 + i / 16 % 2, i / 32};
    EXPECT_EQ(static_cast<int>(run.out[i]),
              1 + at[0] + 8 * (at[1] + 3 * (at[2] + 4 * (at[3] + 3 * at[4]))));
  }
  const TestRun line = LoadBox(Map({24}, {8}), Numbers(24), "20");
  ASSERT_EQ(Report(line), "");
  EXPECT_EQ(line.out, (std::vector<uint32_t>{21, 22, 23, 24, 0, 0, 0, 0}));
}

TEST(TensorCopy, SwizzlesMoveChunksOf16Bytes) {
  for (const int swizzle : {1, 2, 3}) {
    const uint32_t line = 4u << swizzle;  // words
    TensorMap map = Map({line, 16}, {line, 16});
    map.swizzle = static_cast<uint8_t>(swizzle);
    const TestRun run = LoadBox(map, Numbers(line * 16), "0, 0");
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < line * 16; ++i) EXPECT_EQ(run.out[Swizzle(i * 4, swizzle) / 4], i + 1);
  }
}

TEST(TensorCopy, ASwizzleActsOnTheAddressNotOnTheBox) {
  TensorMap map = Map({32, 4}, {32, 4});
  map.swizzle = 3;
  const std::string load = std::string(kLoad) + " [%r1], [%map, {0, 0}], [%bar];\n";
  const TestRun run = RunBody(SharedText() + "add.u32 %r1, %data, 128;\n" + FillText(160) +
                                  "fence.proxy.async;\nbar.warp.sync -1;\n" + LoadMapText() +
                                  ExpectText(512) + load + WaitText() + CopyOutText(160),
                              {.in = WithMap(map, Numbers(160)), .out_words = 160});
  ASSERT_EQ(Report(run), "");
  for (uint32_t i = 0; i < 128; ++i) EXPECT_EQ(run.out[Swizzle(128 + i * 4, 3) / 4], i + 1);
}

// Fills shared memory with the words after the map, and stores a box of it to %out.
std::string StoreText(uint32_t words, const std::string& store,
                      const std::string& wait = "cp.async.bulk.wait_group 0;\n") {
  return SharedText() + MapText("%out") + FillText(words, "%in", 128) +
         "fence.proxy.async;\nbar.warp.sync -1;\n" + store + "\ncp.async.bulk.commit_group;\n" +
         wait;
}
std::string StoreAt(const std::string& coordinates) {
  return std::string(kStore) + " [%map, {" + coordinates + "}], [%data];";
}

TEST(TensorCopy, AStoreWritesWhatIsInBounds) {
  const TensorMap map = Map({24, 10}, {8, 4});
  for (const RunOptions& options : Orders()) {
    const TestRun run =
        RunBody(StoreText(32, "@%first " + StoreAt("20, 7")),
                {.in = WithMap(map, Numbers(32)), .out_words = 240, .options = options});
    ASSERT_EQ(Report(run), "");
    for (int i = 0; i < 240; ++i) {
      const int column = i % 24 - 20, row = i / 24 - 7;
      EXPECT_EQ(run.out[i], column >= 0 && row >= 0 ? 1 + row * 8 + column : 0xdddddddd) << i;
    }
    EXPECT_EQ(run.counts.bulk_stored_bytes, 128);
    EXPECT_EQ(run.counts.bulk_loaded_bytes, 0);
  }
}

TEST(TensorCopy, AStoreUndoesTheSwizzle) {
  TensorMap map = Map({32, 8}, {32, 8});
  map.swizzle = 3;
  const TestRun run = RunBody(StoreText(256, "@%first " + StoreAt("0, 0")),
                              {.in = WithMap(map, Numbers(256)), .out_words = 256});
  ASSERT_EQ(Report(run), "");
  for (uint32_t i = 0; i < 256; ++i) EXPECT_EQ(run.out[i], Swizzle(i * 4, 3) / 4 + 1);
}

TEST(TensorCopy, AStoreByAWholeWarpIsOneStore) {
  const TensorMap map = Map({8, 16}, {8, 4});
  for (const RunOptions& options : Orders()) {
    const TestRun run =
        RunBody(StoreText(32, StoreAt("0, 4")),
                {.in = WithMap(map, Numbers(32)), .out_words = 128, .options = options});
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[32 + i], i + 1);
  }
  // Two stores, each by 16 lanes.
  const TestRun two =
      RunBody(StoreText(32, "and.b32 %r1, %tid, 1;\nshl.b32 %r1, %r1, 3;\n" + StoreAt("0, %r1")),
              {.in = WithMap(map, Numbers(32)), .out_words = 128});
  ASSERT_EQ(Report(two), "");
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(two.out[i], i + 1);
    EXPECT_EQ(two.out[64 + i], i + 1);
  }
}

TEST(TensorCopy, ALoadByTwoLanesIsTwoLoads) {
  const TensorMap map = Map({8, 16}, {8, 4});
  const std::string load =
      "setp.lt.u32 %p1, %tid, 2;\n@%p1 "
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%data], [%map, {0, 4}], [%bar];\n";
  const TestRun run = RunBody(SharedText() + LoadMapText() + ExpectText(256) +
                                  "bar.warp.sync -1;\n" + load + WaitText() + CopyOutText(32),
                              {.in = WithMap(map, Numbers(128)), .out_words = 32});
  EXPECT_EQ(run.stop, "");
  EXPECT_TRUE(Contains(run, "asynchronous write after asynchronous write, without an order"))
      << Report(run);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[i], i + 33);
}

TEST(TensorCopy, MulticastReachesEachCtaOfTheMask) {
  const TensorMap map = Map({8, 16}, {8, 4});
  // CTA 1 loads for CTAs 1 to 3; CTA 0 expects nothing, and its shared memory stays.
  const std::string body =
      SharedText() + LoadMapText() + FillText(32) +
      "fence.proxy.async;\nsetp.gt.u32 %p1, %cta, 0;\nand.pred %p2, %p1, %first;\n"
      "@%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 128;\n@!%p1 mbarrier.arrive.shared.b64 "
      "_, [%bar];\n"
      "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
      "setp.eq.u32 %p1, %cta, 1;\nand.pred %p2, %p1, %first;\nmov.b16 %h1, 14;\n"
      "@%p2 "
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::"
      "cluster"
      ".L2::cache_hint [%data], [%map, {0, 2}], [%bar], %h1, %rd1;\n";
  const std::string one_arrival = "@!%p1 mbarrier.arrive";
  std::string lane = body;
  lane.replace(lane.find(one_arrival), one_arrival.size(), "@%p3 mbarrier.arrive");
  lane.insert(lane.find("@%p3"), "not.pred %p3, %p1;\nand.pred %p3, %p3, %first;\n");
  for (const RunOptions& options : Orders()) {
    const TestRun run =
        RunBody(lane + WaitText() + CopyOutText(32), {.in = WithMap(map, Numbers(128)),
                                                      .out_words = 128,
                                                      .ctas = 4,
                                                      .cluster = 4,
                                                      .options = options});
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(run.out[32 + i], 17 + i % 32);
    EXPECT_EQ(run.out[0], TensorMap::kMagic);
    EXPECT_EQ(run.counts.bulk_loaded_bytes, 128);
    EXPECT_EQ(run.counts.bulk_bytes, 3 * 128);
  }
}

// Adds (or the like) 32 words of shared memory to %out by each of the lanes of a mask, and returns
// the words.
TestRun ReduceBox(int type, const std::string& operation, const std::vector<uint32_t>& data,
                  uint32_t lanes = 1) {
  TensorMap map = Map({8, 4}, {8, 4});
  map.type = static_cast<uint8_t>(type);
  map.element_bytes = static_cast<uint8_t>(TensorElementBytes(type));
  map.dims[0] = map.box[0] = 32 / map.element_bytes;
  return RunBody(StoreText(32, "setp.lt.u32 %p1, %tid, " + std::to_string(lanes) +
                                   ";\n@%p1 cp.reduce.async.bulk.tensor.2d.global.shared::cta." +
                                   operation + ".bulk_group [%map, {0, 0}], [%data];"),
                 {.in = WithMap(map, data), .out_words = 32});
}

TEST(TensorCopy, AReductionCombinesElementsOfTheMapsType) {
  const std::vector<uint32_t> ones(32, 1);
  EXPECT_EQ(ReduceBox(2, "add", ones).out[5], 0xdddddddeu);
  EXPECT_EQ(ReduceBox(3, "max", ones).out[5], 1u);  // 0xdddddddd is negative
  EXPECT_EQ(ReduceBox(2, "min.tile", ones).out[5], 1u);
  EXPECT_EQ(ReduceBox(2, "inc", ones).out[5], 0u);  // above 1
  EXPECT_EQ(ReduceBox(2, "xor", ones).out[5], 0xdddddddcu);
  EXPECT_EQ(ReduceBox(4, "add", ones).out[4], 0xdddddddeu);  // u64: no carry
  EXPECT_EQ(ReduceBox(5, "min", ones).out[4], 0xddddddddu);
  const float old = std::bit_cast<float>(0xddddddddu);
  EXPECT_EQ(ReduceBox(7, "add", std::vector<uint32_t>(32, std::bit_cast<uint32_t>(-old))).out[5],
            0u);
  // 0x5ddd is 375.25 in f16 and 1.9e18 in bf16.
  EXPECT_EQ(ReduceBox(6, "add", std::vector<uint32_t>(32, 0x5ddd5ddd)).out[5], 0u);
  EXPECT_EQ(ReduceBox(9, "add", std::vector<uint32_t>(32, 0x5ddd5ddd)).out[5], 0u);
  EXPECT_EQ(ReduceBox(9, "max", std::vector<uint32_t>(32, 0x80003f80)).out[5], 0x80003f80u);
}

TEST(TensorCopy, EachLaneReduces) {
  for (uint32_t lanes : {1, 2, 32}) {
    const TestRun run = ReduceBox(2, "add", Numbers(32), lanes);
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[i], 0xdddddddd + lanes * (i + 1));
  }
}

TEST(TensorCopy, ReductionsThatTheHardwareLacksAreRefused) {
  const std::vector<uint32_t> ones(32, 1);
  for (const auto& [type, operation] : {std::pair(0, "add"),
                                        {1, "add"},
                                        {8, "add"},
                                        {5, "add"},
                                        {7, "max"},
                                        {3, "inc"},
                                        {6, "xor"}}) {
    const TestRun run = ReduceBox(type, operation, ones);
    EXPECT_TRUE(Contains(run, "have no such reduction")) << type << operation << run.stop;
  }
}

// ---- Order

TEST(TensorCopy, AStoreNeedsAProxyFenceAfterGenericWrites) {
  const TensorMap map = Map({8, 4}, {8, 4});
  std::string body = StoreText(32, "@%first " + StoreAt("0, 0"));
  body.erase(body.find("fence.proxy.async;"), 18);
  const TestRun run = RunBody(body, {.in = WithMap(map, Numbers(32)), .out_words = 32});
  EXPECT_TRUE(Contains(run, "asynchronous read after write, without a proxy fence")) << Report(run);
}

TEST(TensorCopy, ALoadNeedsAProxyFenceAfterGenericReads) {
  const TensorMap map = Map({8, 4}, {8, 4});
  const std::string load = std::string(kLoad) + " [%data], [%map, {0, 0}], [%bar];\n";
  const auto body = [&](const std::string& fence) {
    return SharedText() + LoadMapText() + ExpectText(128) + load + WaitText(0) + CopyOutText(32) +
           fence + "bar.warp.sync -1;\n" + ExpectText(128) + load + WaitText(1);
  };
  const TestLaunch launch{.in = WithMap(map, Numbers(32))};
  EXPECT_EQ(Report(RunBody(body("fence.proxy.async;\n"), launch)), "");
  EXPECT_TRUE(
      Contains(RunBody(body(""), launch), "asynchronous write after read, without a proxy fence"));
}

TEST(TensorCopy, AWaitForReadsFreesTheSourceOnly) {
  const TensorMap map = Map({8, 4}, {8, 4});
  const std::string overwrite = "@%first st.shared.u32 [%data], 7;\n";
  const std::string read = "@%first ld.global.u32 %r1, [%out];\n";
  const auto run = [&](const std::string& wait, const std::string& after) {
    return RunBody(
        StoreText(32, "@%first " + StoreAt("0, 0"), wait) + after + "cp.async.bulk.wait_group 0;\n",
        {.in = WithMap(map, Numbers(32)), .out_words = 32});
  };
  EXPECT_EQ(Report(run("cp.async.bulk.wait_group.read 0;\n", overwrite)), "");
  EXPECT_NE(Report(run("", overwrite)), "");
  EXPECT_TRUE(Contains(run("cp.async.bulk.wait_group.read 0;\n", read),
                       "read after asynchronous write, without an order"));
  EXPECT_EQ(Report(run("cp.async.bulk.wait_group.read 0;\ncp.async.bulk.wait_group 0;\n", read)),
            "");
}

TEST(TensorCopy, TooFewExpectedBytesAreFound) {
  const TensorMap map = Map({8, 4}, {8, 4});
  const std::string load = std::string(kLoad) + " [%data], [%map, {0, 0}], [%bar];\n";
  const TestRun run =
      RunBody(SharedText() + LoadMapText() + ExpectText(96) + load + WaitText() + CopyOutText(32),
              {.in = WithMap(map, Numbers(32)), .options = {.mode = Mode::kLate}});
  EXPECT_NE(Report(run), "");
}

TEST(TensorCopy, ACtaEndsAfterItsLoads) {
  const TensorMap map = Map({8, 4}, {8, 4});
  const std::string load = std::string(kLoad) + " [%data], [%map, {0, 0}], [%bar];\n";
  const TestRun run = RunBody(SharedText() + LoadMapText() + ExpectText(128) + load,
                              {.in = WithMap(map, Numbers(32)), .options = {.mode = Mode::kLate}});
  EXPECT_TRUE(Contains(run, "the CTA ends while asynchronous copies write its shared memory"))
      << Report(run);
}

// ---- Tensor maps

TEST(TensorCopy, AChangedMapNeedsAFence) {
  const TensorMap map = Map({8, 4}, {8, 4});
  std::string text = LoadMapText();
  const std::string fence = "@%p13 fence.proxy.tensormap::generic.acquire.gpu [%map], 128;\n";
  text.erase(text.find(fence), fence.size());
  const std::string load = std::string(kLoad) + " [%data], [%map, {0, 0}], [%bar];\n";
  const TestRun run = RunBody(SharedText() + text + ExpectText(128) + load + WaitText(),
                              {.in = WithMap(map, Numbers(32))});
  EXPECT_TRUE(Contains(run, "reads a tensor map after a change, without a proxy fence"))
      << Report(run);
}

// A map that the kernel makes from zeros in shared memory, as Triton's do: 32 x 16 f16 with boxes
// of 16 x 2.
std::string MadeMapText() {
  return R"(
shl.b32 %r1, %tid, 2;
add.u32 %r1, %r1, %data;
st.shared.b32 [%r1], 0;
bar.warp.sync -1;
add.u64 %rd1, %in, 128;
cvt.u64.u32 %rd2, %data;
@!%first bra MADE;
tensormap.replace.tile.global_address.shared::cta.b1024.b64 [ %rd2 + 0 ], %rd1;
tensormap.replace.tile.rank.shared::cta.b1024.b32 [%rd2], 0x1;
tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%rd2], 0x0, 16;
tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%rd2], 0x1, 2;
tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%rd2], 0x0, 30;
tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%rd2], 0x1, 16;
tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%rd2], 0x0, 64;
tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%rd2], 0x0, 1;
tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%rd2], 0x1, 1;
tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%rd2], 0xa;
tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%rd2], 0x0;
tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%rd2], 0x1;
tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%rd2], 0x1;
MADE:
bar.warp.sync -1;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%in], [%rd2], 0x80;
fence.proxy.tensormap::generic.acquire.gpu [%in], 0x80;
)";
}

TEST(TensorCopy, AKernelCanMakeAMap) {
  const std::string body = SharedText() + MadeMapText() + "add.u32 %data, %data, 1024;\n" +
                           ExpectText(64) + kLoad + " [%data], [%in, {16, 3}], [%bar];\n" +
                           WaitText() + CopyOutText(16);
  const TestRun run = RunBody(body, {.in = WithMap(TensorMap{}, Numbers(256)), .out_words = 16});
  ASSERT_EQ(Report(run), "");
  // Lines of 8 words; the last of each is out of bounds, and bf16 is filled with NaN.
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(run.out[i], i % 8 == 7 ? 0x7fff7fff : 1 + (3 + i / 8) * 16 + 8 + i % 8) << i;
  }
}

TEST(TensorCopy, AMadeMapNeedsTheFenceOfItsUser) {
  std::string text = MadeMapText();
  text.erase(text.find("fence.proxy.tensormap"));
  const std::string body = SharedText() + text + "add.u32 %data, %data, 1024;\n" + ExpectText(64) +
                           kLoad + " [%data], [%in, {16, 3}], [%bar];\n" + WaitText();
  const TestRun run = RunBody(body, {.in = WithMap(TensorMap{}, Numbers(256))});
  EXPECT_TRUE(Contains(run, "reads a tensor map after a change, without a proxy fence"))
      << Report(run);
}

TEST(TensorCopy, MapsLieInParameters) {
  std::string text = TestModule(SharedText() + R"(
mov.b64 %rd1, test_map;
cvta.param.u64 %rd2, %rd1;
@%first prefetch.tensormap [%rd2];
@%first prefetch.param.tensormap [test_map];
)" + ExpectText(128) + kLoad + " [%data], [%rd2, {0, 4}], [%bar];\n" +
                                WaitText() + CopyOutText(32));
  const std::string last = ".param .u64 test_in";
  text.replace(text.find(last), last.size(), last + ", .param .align 64 .b8 test_map[128]");
  alignas(128) std::array<uint32_t, 64> in, out{};
  std::iota(in.begin(), in.end(), 1);
  TensorMap map = Map({8, 8}, {8, 4});
  map.address = reinterpret_cast<uint64_t>(in.data());
  HostMemory memory;
  memory.Add(in.data(), sizeof in, 0);
  memory.Add(out.data(), sizeof out, 0);
  const auto module = ParseModule(text);
  World world(memory, {});
  world.races.SetWritten(map.address, sizeof in);
  Launch launch{.module = module.get(), .kernel = module->kernels.at("test").get()};
  launch.parameters.resize(launch.kernel->parameter_bytes);
  const uint64_t addresses[] = {reinterpret_cast<uint64_t>(out.data()), map.address};
  std::memcpy(launch.parameters.data(), addresses, sizeof addresses);
  std::memcpy(launch.parameters.data() + 64, &map, sizeof map);
  world.Start(std::move(launch));
  world.Run();
  EXPECT_TRUE(world.races.findings().empty());
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i + 33);
  EXPECT_EQ(world.counts.bulk_bytes, 128);
}

// ---- What is refused

// Runs one instruction of lane 0 after the setup of a map of 8 x 16 u32 with boxes of 8 x 4, in a
// cluster of two.
std::string Refusal(
    const std::string& text, const std::function<void(TensorMap&)>& change = [](TensorMap&) {}) {
  TensorMap map = Map({8, 16}, {8, 4});
  change(map);
  return RunBody(SharedText() + LoadMapText() + ExpectText(128) +
                     "setp.eq.u32 %p13, %cta, 0;\nand.pred %p13, %p13, %first;\n" + text,
                 {.in = WithMap(map, Numbers(128)), .ctas = 2, .cluster = 2})
      .stop;
}
std::string LoadWith(const std::string& data, const std::string& map, const std::string& bar,
                     const std::string& to = "cluster") {
  return "@%p13 cp.async.bulk.tensor.2d.shared::" + to + ".global.mbarrier::complete_tx::bytes [" +
         data + "], [" + map + "], [" + bar + "];";
}
constexpr const char* kPeer =
    "mapa.shared::cluster.u32 %r1, %data, 1;\nmapa.shared::cluster.u32 %r2, %bar, 1;\n";

TEST(TensorCopy, WrongMapsAreRefused) {
  const std::string good = LoadWith("%data", "%map, {0, 0}", "%bar");
  const auto expect = [](const std::string& stop, const std::string& text) {
    EXPECT_NE(stop.find(text), std::string::npos) << stop;
  };
  expect(Refusal("add.u64 %rd1, %in, 128;\n" + LoadWith("%data", "%rd1, {0, 0}", "%bar")),
         "there is no tensor map at 0x");
  expect(Refusal("add.u64 %rd1, %in, 32;\n" + LoadWith("%data", "%rd1, {0, 0}", "%bar")),
         "is not a multiple of 64");
  expect(
      Refusal(
          "cvta.shared.u64 %rd1, %rd1;\ncvt.u64.u32 %rd1, %data;\ncvta.shared.u64 %rd1, %rd1;\n" +
          LoadWith("%data", "%rd1, {0, 0}", "%bar")),
      "TMA cannot read it there");
  expect(Refusal(good,
                 [](TensorMap& map) {
                   map.rank = 3, map.dims[2] = map.box[2] = map.element_strides[2] = 1;
                 }),
         "the tensor map has 3 dimensions, and there are 2 coordinates");
  expect(Refusal(good, [](TensorMap& map) { map.strides[0] = 40; }),
         "the tensor map breaks a rule: the stride in bytes");
}

TEST(TensorCopy, WrongPlacesInSharedMemoryAreRefused) {
  const auto expect = [](const std::string& stop, const std::string& text) {
    EXPECT_NE(stop.find(text), std::string::npos) << stop;
  };
  const std::string map = "%map, {0, 0}";
  expect(Refusal(LoadWith("%data+64", map, "%bar")), "which is not a multiple of 128");
  expect(Refusal(LoadWith("%data+32768", map, "%bar")), "lies outside of");
  expect(Refusal(LoadWith("%data", map, "%bar+8")), "there is no mbarrier at shared offset");
  expect(Refusal(LoadWith("%data", map, "%bar+4")), "an mbarrier is 8-byte aligned");
  expect(Refusal(kPeer + LoadWith("%r1", map, "%bar")),
         "the data go to CTA 1 of the cluster, the mbarrier lies in CTA 0");
  expect(Refusal(kPeer + LoadWith("%r1", map, "%r2", "cta")),
         "the destination lies in the shared memory of another CTA");
  expect(Refusal("mov.b16 %h1, 4;\n@%p13 "
                 "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%data], [%map, {0, 0}], [%bar], %h1;"),
         "the mask of CTAs is 4; the cluster has 2");
  const std::string store = "@%p13 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group ";
  expect(Refusal(kPeer + store + "[%map, {0, 0}], [%r1];"),
         "the source lies in the shared memory of another CTA");
  expect(Refusal(store + "[%map, {0, -1}], [%data];"),
         "coordinate 1 is -1; those of a store are not negative");
}

TEST(TensorCopy, ATensorOutsideOfItsMemoryIsRefused) {
  const std::string stop = Refusal(LoadWith("%data", "%map, {0, 1000}", "%bar") + "\n" + WaitText(),
                                   [](TensorMap& map) { map.dims[1] = 2000; });
  EXPECT_NE(stop.find("lies outside of the memory that this GPU may use"), std::string::npos)
      << stop;
}

TEST(TensorCopy, UnknownFormsAreNamed) {
  for (const char* const text :
       {"cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%data], [%map, {0, 0, 0}], [%bar], {%h1};",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%data], "
        "[%map, {0}], [%bar];",
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster [%data], [%map, {0, 0}], [%bar], %h1;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes "
        "[%data], [%map, {0, 0}], [%bar];",
        "cp.async.bulk.tensor.2d.global.shared::cta.im2col_no_offs.bulk_group [%map, {0, 0}], "
        "[%data];",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {0, 0}], [%data];",
        "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%map], 0;",
        "tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%map], 4;",
        "tensormap.replace.tile.global_dim.global.b1024.b64 [%map], 0, %rd1;",
        "tensormap.replace.tile.box_dim.global.b1024.b32 [%map], 5, %r1;"}) {
    const std::string stop = Refusal(text);
    EXPECT_NE(stop.find("unknown instruction"), std::string::npos) << text << "\n" << stop;
  }
}

}  // namespace
}  // namespace ptx
