#include "kernels/cpu/tiles.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/units.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AGMM_TILES __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))

namespace agmm {
namespace {

// A tile holds 16 rows of 64 bytes: of A 16 rows x 32 along K, of B 16 pairs along K x 16 columns,
// of C 16 x 16 sums.
constexpr int64_t kTileRows = 16, kTileBytes = 1024, kRowBytes = 64;
// A step along K of a block of C: two tiles of A by two of B, into four of C.
constexpr int64_t kStep = 32, kBlock = 32, kStepBytes = 2 * kTileBytes;
// The number of steps for which a panel of B, 32 columns wide, stays in the L1 cache while the rows
// of A pass.
constexpr int64_t kSlabSteps = 8;
constexpr int64_t kSumBytes = kBlock * kBlock * static_cast<int64_t>(sizeof(float));
constexpr int kSumPitchBytes = kBlock * sizeof(float);

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Prefetches the next panel into the L2 cache, a few lines at every step.
struct Ahead {
  const char* at = nullptr;
  int64_t lines_a_step = 0;
};

// Adds `steps` to the sums of 32 columns by 32 rows (kBoth) or 16. `first`: starts from zero, not
// from `sums`.
template <bool kBoth>
AGMM_TILES void Accumulate(const std::byte* a, const std::byte* b, int64_t steps, bool first,
                           float* sums, Ahead* ahead) {
  float* const below = sums + kTileRows * kBlock;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kSumPitchBytes);
    _tile_loadd(1, sums + kTileRows, kSumPitchBytes);
    if (kBoth) {
      _tile_loadd(2, below, kSumPitchBytes);
      _tile_loadd(3, below + kTileRows, kSumPitchBytes);
    }
  }
  const char* next = ahead->at;
  for (int64_t step = 0; step < steps; ++step, a += kStepBytes, b += kStepBytes) {
    _tile_loadd(6, b, kRowBytes);
    _tile_loadd(4, a, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTileBytes, kRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    if (kBoth) {
      _tile_loadd(5, a + kTileBytes, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    for (int64_t line = 0; line < ahead->lines_a_step; ++line, next += kRowBytes)
      _mm_prefetch(next, _MM_HINT_T1);
  }
  ahead->at = next;
  _tile_stored(0, sums, kSumPitchBytes);
  _tile_stored(1, sums + kTileRows, kSumPitchBytes);
  if (kBoth) {
    _tile_stored(2, below, kSumPitchBytes);
    _tile_stored(3, below + kTileRows, kSumPitchBytes);
  }
}

AGMM_TILES void LoadSums(const Matrix& c, int64_t row, int64_t rows, int64_t col, int64_t cols,
                         float* sums) {
  std::memset(sums, 0, kSumBytes);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(sums + r * kBlock, c.data + (row + r) * c.pitch_bytes + col * sizeof(float),
                cols * sizeof(float));
  }
}

AGMM_TILES void StoreSums(const float* sums, const Matrix& c, int64_t row, int64_t rows,
                          int64_t col, int64_t cols) {
  const __mmask32 mask = cols == kBlock ? ~__mmask32{0} : (__mmask32{1} << cols) - 1;
  for (int64_t r = 0; r < rows; ++r, sums += kBlock) {
    std::byte* const to = c.data + (row + r) * c.pitch_bytes + col * SizeOf(c.dtype);
    const __m512 left = _mm512_load_ps(sums), right = _mm512_load_ps(sums + kTileRows);
    if (c.dtype == DType::kBF16) {
      const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(right, left));
      _mm512_mask_storeu_epi16(to, mask, both);
    } else {
      _mm512_mask_storeu_ps(to, static_cast<__mmask16>(mask), left);
      _mm512_mask_storeu_ps(to + kRowBytes, static_cast<__mmask16>(mask >> kTileRows), right);
    }
  }
}

// Packs A as blocks of 32 rows; a block is a sequence of steps, a step two tiles of 16 rows. The
// last ones are filled up with zeros.
void PackRows(ConstMatrix a, int64_t rows, int64_t k, std::byte* packed) {
  const int64_t steps = CeilDiv(k, kStep), bytes = k * SizeOf(DType::kBF16);
  for (int64_t row = 0; row < RoundUp(rows, kTileRows); ++row) {
    std::byte* to = packed + row / kBlock * steps * kStepBytes + row / kTileRows % 2 * kTileBytes +
                    row % kTileRows * kRowBytes;
    const std::byte* const from = a.data + row * a.pitch_bytes;
    for (int64_t at = 0; at < bytes; at += kRowBytes, to += kStepBytes) {
      const int64_t size = row < rows ? std::min(kRowBytes, bytes - at) : 0;
      if (size == kRowBytes) {
        std::memcpy(to, from + at, kRowBytes);
      } else {
        std::memset(to, 0, kRowBytes);
        if (size > 0) std::memcpy(to, from + at, size);
      }
    }
  }
}

}  // namespace

bool AskForTiles() {
  constexpr int kRequestPermission = 0x1023,
                kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

int64_t PackedTileBytes(int64_t n, int64_t k) {
  return CeilDiv(n, kBlock) * CeilDiv(k, kStep) * kStepBytes;
}

AGMM_TILES void PackTiles(ConstMatrix b, int64_t n, int64_t k, std::byte* packed) {
  for (int64_t panel = 0; panel < n; panel += kBlock) {
    for (int64_t step = 0; step < k; step += kStep) {
      for (int64_t col = panel; col < panel + kBlock; col += kTileRows) {
        const int64_t cols = std::clamp<int64_t>(n - col, 0, kTileRows);
        const auto mask = static_cast<__mmask16>((1u << cols) - 1);
        for (int64_t row = step; row < step + kStep; row += 2, packed += kRowBytes) {
          const auto load = [&](int64_t r) AGMM_TILES {
            const std::byte* const from = b.data + r * b.pitch_bytes + col * SizeOf(DType::kBF16);
            const __mmask16 there = r < k ? mask : __mmask16{0};
            return _mm512_maskz_cvtepu16_epi32(there, _mm256_maskz_loadu_epi16(there, from));
          };
          const __m512i pairs =
              _mm512_or_si512(load(row), _mm512_maskz_slli_epi32(mask, load(row + 1), 16));
          _mm512_store_si512(packed, pairs);
        }
      }
    }
  }
}

int64_t TileProduct::ScratchBytes() const {
  return CeilDiv(rows, kBlock) * (kSumBytes + CeilDiv(k, kStep) * kStepBytes);
}

AGMM_TILES void MultiplyTiles(const TileProduct& product, ConstMatrix a, const std::byte* packed_b,
                              Matrix c, std::byte* scratch) {
  const auto [rows, n, k, add] = product;
  const int64_t blocks = CeilDiv(rows, kBlock), steps = CeilDiv(k, kStep),
                panels = CeilDiv(n, kBlock);
  const int64_t panel_bytes = steps * kStepBytes;
  std::byte* const packed_a = scratch + blocks * kSumBytes;
  PackRows(a, rows, k, packed_a);
  TileConfig config;
  std::fill_n(config.row_bytes, 8, static_cast<uint16_t>(kRowBytes));
  std::fill_n(config.rows, 8, static_cast<uint8_t>(kTileRows));
  _tile_loadconfig(&config);
  for (int64_t panel = 0; panel < panels; ++panel) {
    const std::byte* const b = packed_b + panel * panel_bytes;
    const int64_t col = panel * kBlock, cols = std::min(kBlock, n - col);
    Ahead ahead;
    if (panel + 1 < panels) {
      ahead.at = reinterpret_cast<const char*>(b + panel_bytes);
      ahead.lines_a_step = CeilDiv(panel_bytes / kRowBytes, blocks * steps);
    }
    for (int64_t step = 0; step < steps; step += kSlabSteps) {
      const int64_t slab = std::min(kSlabSteps, steps - step);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t row = block * kBlock, block_rows = std::min(kBlock, rows - row);
        auto* const sums = reinterpret_cast<float*>(scratch + block * kSumBytes);
        const bool first = step == 0 && !add;
        if (step == 0 && add) LoadSums(c, row, block_rows, col, cols, sums);
        const std::byte* const block_a = packed_a + block * panel_bytes + step * kStepBytes;
        const auto accumulate = block_rows > kTileRows ? Accumulate<true> : Accumulate<false>;
        accumulate(block_a, b + step * kStepBytes, slab, first, sums, &ahead);
        if (step + slab == steps) StoreSums(sums, c, row, block_rows, col, cols);
      }
    }
  }
  _tile_release();
}

}  // namespace agmm

#else

namespace agmm {

bool AskForTiles() { return false; }
int64_t PackedTileBytes(int64_t, int64_t) { return 0; }
void PackTiles(ConstMatrix, int64_t, int64_t, std::byte*) {}
int64_t TileProduct::ScratchBytes() const { return 0; }
void MultiplyTiles(const TileProduct&, ConstMatrix, const std::byte*, Matrix, std::byte*) {}

}  // namespace agmm

#endif
