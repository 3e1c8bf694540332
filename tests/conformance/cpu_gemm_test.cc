// The CPU device's arithmetic: every piece sums along K in the same order, for any number of rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/large_pages.h"
#include "kernels/base/units.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/cpu/cpu_heap.h"
#include "kernels/cpu/pack_cache.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/large_pages.h"

namespace agmm::test {
namespace {

constexpr int64_t kMaxRows = 128;

// `values` as `dtype`, rows dense.
std::vector<std::byte> Dense(const TestMatrix& values, DType dtype) {
  std::vector<std::byte> bytes(values.rows * values.cols * SizeOf(dtype));
  ConvertFromF32(dtype, values.values.data(), bytes.data(), values.values.size());
  return bytes;
}

class Gemm : public testing::TestWithParam<std::tuple<GemmKernel, DType>> {};

TEST_P(Gemm, ARowIsTheSameInPiecesOfAnySize) {
  const auto [kernel, out] = GetParam();
  if (!Has(kernel)) GTEST_SKIP() << "this processor does not have the kernel";
  if (!RowsSumAlike(kernel)) GTEST_SKIP() << "not promised on this processor";
  const DType dtype = InputOf(kernel);
  GemmLibrary library(1);
  GemmWorker worker(0);
  for (auto [n, k] :
       {std::pair<int64_t, int64_t>{61, 333}, {1, 333}, {256, 1024}, {48, 2000}, {7, 4095}}) {
    SCOPED_TRACE(testing::Message() << "n " << n << " k " << k);
    const std::vector<std::byte> a = Dense(Uniform(kMaxRows, k, TestSeed()), dtype),
                                 b = Dense(Uniform(k, n, TestSeed() + 1), dtype);
    const int64_t row_bytes = n * SizeOf(out);
    std::vector<std::byte> whole(kMaxRows * row_bytes);
    PackedB packed;
    for (int64_t m : {kMaxRows, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{16},
                      int64_t{17}, int64_t{33}, int64_t{64}, int64_t{97}, int64_t{127}}) {
      const auto matmul = library.Get({m, n, k, kernel, out, false});
      ASSERT_TRUE(matmul.ok()) << matmul.status();
      if (m == kMaxRows)
        packed = (*matmul)->Pack({b.data(), n * SizeOf(dtype), dtype}, worker).value();
      std::vector<std::byte> c(whole.size(), std::byte{0xff});
      ASSERT_TRUE((*matmul)
                      ->Run({a.data(), k * SizeOf(dtype), dtype}, packed,
                            {c.data(), row_bytes, out}, worker)
                      .ok());
      if (m == kMaxRows) whole = c;
      EXPECT_EQ(std::memcmp(c.data(), whole.data(), m * row_bytes), 0) << "m " << m;
    }
  }
}

// "tiles_to_bf16".
std::string NameOf(const testing::TestParamInfo<std::tuple<GemmKernel, DType>>& info) {
  const auto [kernel, out] = info.param;
  const bool tiles = kernel == GemmKernel::kTiles;
  return absl::StrCat(tiles ? "tiles" : Name(InputOf(kernel)), "_to_", Name(out));
}

INSTANTIATE_TEST_SUITE_P(All, Gemm,
                         testing::Values(std::tuple(GemmKernel::kF32, DType::kF32),
                                         std::tuple(GemmKernel::kBF16, DType::kF32),
                                         std::tuple(GemmKernel::kBF16, DType::kBF16),
                                         std::tuple(GemmKernel::kTiles, DType::kF32),
                                         std::tuple(GemmKernel::kTiles, DType::kBF16)),
                         NameOf);

TEST(KernelChoice, TheProcessorAloneDecidesAndItIsDescribed) {
  const std::string onednn = OneDnnCode(GemmKernel::kBF16);
  bool amd = false;
#if defined(__x86_64__)
  amd = __builtin_cpu_is("amd");
#endif
  const auto [expected, words] = Has(GemmKernel::kTiles)
                                     ? std::pair(GemmKernel::kTiles, "bf16 by AMX tiles")
                                 : amd && absl::StrContains(onednn, "avx512_core_bf16")
                                     ? std::pair(GemmKernel::kBF16, "bf16 by oneDNN")
                                     : std::pair(GemmKernel::kF32, "bf16 widened to f32");
  EXPECT_EQ(KernelFor(DType::kBF16), expected);
  EXPECT_TRUE(Has(expected));
  EXPECT_EQ(KernelFor(DType::kF32), GemmKernel::kF32);
  EXPECT_EQ(KernelFor(DType::kF16), GemmKernel::kF32);
  EXPECT_THAT(GemmDescription(), testing::StartsWith("oneDNN "));
  EXPECT_THAT(GemmDescription(), testing::HasSubstr(words));
  if (!Has(GemmKernel::kBF16)) {
    EXPECT_THAT(GemmDescription(), testing::HasSubstr("oneDNN has no bf16 on this processor"));
  }
}

TEST(KernelChoice, WidenedBF16IsExactAndItsPackedBIsCountedInF32) {
  constexpr int64_t kM = 5, kN = 48, kK = 300;
  const TestMatrix a = SmallIntegers(kM, kK, 1), b = SmallIntegers(kK, kN, 2);
  const std::vector<std::byte> a_bytes = Dense(a, DType::kF32), b_bytes = Dense(b, DType::kBF16);
  GemmLibrary library(1);
  GemmWorker worker(0);
  const auto matmul = library.Get({kM, kN, kK, GemmKernel::kF32, DType::kF32, false}).value();
  const PackedB packed =
      matmul->Pack({b_bytes.data(), kN * SizeOf(DType::kBF16), DType::kBF16}, worker).value();
  EXPECT_GE(packed.bytes, kK * kN * SizeOf(DType::kF32));
  std::vector<std::byte> c(kM * kN * SizeOf(DType::kF32));
  ASSERT_TRUE(matmul
                  ->Run({a_bytes.data(), kK * SizeOf(DType::kF32), DType::kF32}, packed,
                        {c.data(), kN * SizeOf(DType::kF32), DType::kF32}, worker)
                  .ok());
  EXPECT_EQ(c, Dense(MatrixProduct(a, b), DType::kF32));
}

// Whole numbers as `dtype`, rows `pitch_bytes` apart, with poison behind each row.
std::vector<std::byte> Pitched(const TestMatrix& values, int64_t pitch_bytes, DType dtype) {
  std::vector<std::byte> bytes(values.rows * pitch_bytes, std::byte{0xff});
  for (int64_t row = 0; row < values.rows; ++row) {
    ConvertFromF32(dtype, values.values.data() + row * values.cols,
                   bytes.data() + row * pitch_bytes, values.cols);
  }
  return bytes;
}

TEST(Tiles, MultiplyShapesAndPitchesOfAnySizeAndTouchNothingElse) {
  if (!Has(GemmKernel::kTiles)) GTEST_SKIP() << "this processor has no tiles";
  constexpr DType kIn = DType::kBF16;
  for (auto [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                         {16, 32, 32},
                         {17, 33, 31},
                         {33, 16, 300},
                         {49, 47, 513},
                         {70, 96, 257},
                         {128, 64, 1000}}) {
    for (const auto& [out, add] :
         {std::pair(DType::kBF16, false), {DType::kF32, false}, {DType::kF32, true}}) {
      SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << " to " << Name(out)
                                      << (add ? ", added" : ""));
      const TestMatrix a = SmallIntegers(m, k, 1), b = SmallIntegers(k, n, 2),
                       before = SmallIntegers(m, n, 3);
      TestMatrix expected = before;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          float sum = add ? before.values[i * n + j] : 0;
          for (int64_t l = 0; l < k; ++l) sum += a.values[i * k + l] * b.values[l * n + j];
          expected.values[i * n + j] = sum;
        }
      }
      const int64_t a_pitch = (k + 3) * SizeOf(kIn), b_pitch = (n + 5) * SizeOf(kIn),
                    c_pitch = (n + 1) * SizeOf(out);
      const std::vector<std::byte> a_bytes = Pitched(a, a_pitch, kIn),
                                   b_bytes = Pitched(b, b_pitch, kIn);
      GemmLibrary library(1);
      GemmWorker worker(0);
      const auto matmul = library.Get({m, n, k, GemmKernel::kTiles, out, add}).value();
      const PackedB packed = matmul->Pack({b_bytes.data(), b_pitch, kIn}, worker).value();
      std::vector<std::byte> c = Pitched(before, c_pitch, out);
      ASSERT_TRUE(
          matmul->Run({a_bytes.data(), a_pitch, kIn}, packed, {c.data(), c_pitch, out}, worker)
              .ok());
      EXPECT_EQ(c, Pitched(expected, c_pitch, out));
    }
  }
}

TEST(GemmLibrary, SharesAMatmulWhileACallerHoldsIt) {
  GemmLibrary library(1);
  const Matmul::Key key{16, 32, 64, GemmKernel::kF32, DType::kF32, false};
  const auto first = library.Get(key).value();
  EXPECT_EQ(library.Get(key).value(), first);
  Matmul::Key other = key;
  other.add = true;
  EXPECT_NE(library.Get(other).value(), first);
}

TEST(Convert, RowsAgreeWithTheScalarConversions) {
  const TestMatrix values = Uniform(5, 37, TestSeed());
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const int64_t pitch = RoundUp(37 * SizeOf(dtype), kRowAlignBytes);
    std::vector<std::byte> narrow(5 * pitch, std::byte{0x11});
    CopyRows({reinterpret_cast<const std::byte*>(values.values.data()), 37 * 4, DType::kF32},
             {narrow.data(), pitch, dtype}, 5, 37);
    std::vector<float> wide(5 * 37);
    CopyRows({narrow.data(), pitch, dtype},
             {reinterpret_cast<std::byte*>(wide.data()), 37 * 4, DType::kF32}, 5, 37);
    EXPECT_EQ(wide, Rounded(values, dtype).values) << Name(dtype);
    for (int64_t row = 0; row < 5; ++row)
      EXPECT_EQ(narrow[row * pitch + 37 * SizeOf(dtype)], std::byte{0x11}) << "padding was written";
  }
}

// Rows longer than the batches in which they are added up.
TEST(Convert, SumsAddInOrderAndConvertOnce) {
  constexpr int64_t kRows = 3, kCols = 2500;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(Name(dtype));
    const int64_t pitch = RoundUp(kCols * SizeOf(dtype), kRowAlignBytes);
    std::vector<std::vector<std::byte>> terms;
    std::vector<float> expected(kRows * kCols, 1e6f), acc = expected;
    for (uint64_t seed : {1, 2, 3}) {
      const TestMatrix values = Uniform(kRows, kCols, seed);
      terms.emplace_back(kRows * pitch, std::byte{0x11});
      CopyRows({reinterpret_cast<const std::byte*>(values.values.data()), kCols * 4, DType::kF32},
               {terms.back().data(), pitch, dtype}, kRows, kCols);
      const std::vector<float> rounded = Rounded(values, dtype).values;
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += rounded[i];
    }
    const Matrix sum{reinterpret_cast<std::byte*>(acc.data()), kCols * 4, DType::kF32};
    std::vector<ConstMatrix> from = {sum};
    for (const auto& term : terms) from.push_back({term.data(), pitch, dtype});
    std::vector<std::byte> out(kRows * pitch, std::byte{0x11}), converted = out;
    SumRows(from, {out.data(), pitch, dtype}, kRows, kCols);
    SumRows(from, sum, kRows, kCols);
    EXPECT_EQ(acc, expected);
    CopyRows(sum, {converted.data(), pitch, dtype}, kRows, kCols);
    EXPECT_EQ(out, converted) << "the padding was left alone";
  }
}

std::shared_ptr<const PackedB> PackOf(int64_t bytes) {
  return std::make_shared<const PackedB>(PackedB{{}, bytes});
}

TEST(PackCache, KeepsTheLatestVersionOfOverlappingBytesOnly) {
  std::vector<std::byte> memory(4096);
  const PackCache::Key whole{memory.data(), 128, 32, 8, DType::kF32};
  const PackCache::Key half{memory.data(), 128, 16, 8, DType::kF32};
  PackCache cache;
  cache.Claim(whole, 1);
  EXPECT_TRUE(cache.Find(whole, 1).busy);
  cache.Fill(whole, 1, PackOf(1000));
  cache.Claim(half, 1);
  cache.Fill(half, 1, PackOf(500));
  EXPECT_EQ(cache.bytes(), 1500);
  EXPECT_NE(cache.Find(whole, 1).packed, nullptr);
  EXPECT_EQ(cache.Find(whole, 2).packed, nullptr);
  cache.Claim(half, 2);
  EXPECT_EQ(cache.bytes(), 0);
  cache.Abandon(half, 2);
  EXPECT_FALSE(cache.Find(half, 2).busy);
}

TEST(CpuHeap, IsSharedThroughItsDescriptorAndCannotBeResized) {
  auto heap = CpuHeap::Create(1 << 20);
  ASSERT_TRUE(heap.ok()) << heap.status();
  EXPECT_EQ((*heap)->host()[12345], std::byte{0});
  void* other = mmap(nullptr, 1 << 20, PROT_READ, MAP_SHARED, (*heap)->fd(), 0);
  ASSERT_NE(other, MAP_FAILED);
  (*heap)->host()[777] = std::byte{42};
  EXPECT_EQ(static_cast<std::byte*>(other)[777], std::byte{42});
  EXPECT_NE(ftruncate((*heap)->fd(), 4096), 0);
  EXPECT_NE(ftruncate((*heap)->fd(), 2 << 20), 0);
  munmap(other, 1 << 20);
}

TEST(CpuHeap, WrittenTensorsUseLargePages) {
  if (!HasLargePages()) GTEST_SKIP() << "this machine has no large pages for files";
  const auto heap = CpuHeap::Create(64 * kLargePageBytes);
  ASSERT_TRUE(heap.ok()) << heap.status();
  std::byte* const data = (*heap)->host().data();
  const Range tensor{kLargePageBytes + 4096, 12 * kLargePageBytes};
  data[tensor.begin] = data[5 * kLargePageBytes - 1] = std::byte{42};
  // A row beyond the tensor's first stretch: neither the pages shared with other tensors nor all of
  // the tensor.
  (*heap)->CommitPages({5 * kLargePageBytes, 5 * kLargePageBytes + 4096}, tensor);
  EXPECT_EQ(LargePages(data), 4);
  (*heap)->CommitPages(tensor, tensor);
  EXPECT_EQ(LargePages(data), 10);
  EXPECT_EQ(data[tensor.begin], std::byte{42});
  EXPECT_EQ(data[5 * kLargePageBytes - 1], std::byte{42});
  EXPECT_EQ(data[7 * kLargePageBytes], std::byte{0});
  // Maps it like another process, from the middle of a large page on.
  const int64_t bytes = 4 * kLargePageBytes;
  void* const other = MapShared(bytes, PROT_READ, (*heap)->fd(), tensor.begin);
  ASSERT_NE(other, MAP_FAILED);
  ASSERT_TRUE(MakeLargePages(static_cast<std::byte*>(other), bytes));
  EXPECT_EQ(LargePages(other), 3);
  EXPECT_EQ(*static_cast<std::byte*>(other), std::byte{42});
  munmap(other, bytes);
}

}  // namespace
}  // namespace agmm::test
