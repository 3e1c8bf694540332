// C[m, n] = A[m, k] * B[k, n] in bf16 with sums in f32, on the caller's thread: one plain oneDNN
// call, agmm's tiles, or oneDNN in f32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/tiles.h"
#include "tests/bench/contender_rank.h"

namespace agmm::bench {

class LocalGemm {
 public:
  using Type = dnnl::memory::data_type;
  // `b` is [k, n], row-major, and owned by the caller. All three matrices have `type`.
  LocalGemm(void* b, int64_t k, int64_t n, Type type = Type::bf16)
      : b_(b), k_(k), n_(n), type_(type), stream_(Engine()) {}

  // With `packed`, B is in the layout that oneDNN prefers for m rows, which Prepare makes.
  void Run(void* a, int64_t m, void* c, bool packed) {
    if (m == 0) return;
    Prepared& one = Prepare(m, packed);
    one.a.set_data_handle(a);
    one.c.set_data_handle(c);
    one.matmul.execute(stream_,
                       {{DNNL_ARG_SRC, one.a}, {DNNL_ARG_WEIGHTS, one.b}, {DNNL_ARG_DST, one.c}});
    stream_.wait();
  }

  struct Prepared {
    dnnl::matmul matmul;
    dnnl::memory a, b, c;
  };
  Prepared& Prepare(int64_t m, bool packed) {
    auto found = prepared_.find({m, packed});
    if (found != prepared_.end()) return found->second;
    const dnnl::memory::desc a = RowMajor(m, k_), c = RowMajor(m, n_), plain = RowMajor(k_, n_);
    const dnnl::memory::desc any({k_, n_}, type_, dnnl::memory::format_tag::any);
    const auto description = DescribeMatmul(Engine(), a, packed ? any : plain, c);
    Prepared one{dnnl::matmul(description), dnnl::memory(a, Engine(), DNNL_MEMORY_NONE),
                 Weights(description.weights_desc()), dnnl::memory(c, Engine(), DNNL_MEMORY_NONE)};
    return prepared_.emplace(std::pair(m, packed), std::move(one)).first->second;
  }

 private:
  // One engine, because execution fails with a second one.
  static const dnnl::engine& Engine() {
    static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
    return *engine;
  }
  dnnl::memory::desc RowMajor(int64_t rows, int64_t cols) const {
    return dnnl::memory::desc({rows, cols}, type_, dnnl::memory::format_tag::ab);
  }
  // B in this layout, packed once for all numbers of rows.
  dnnl::memory Weights(const dnnl::memory::desc& layout) {
    dnnl::memory plain(RowMajor(k_, n_), Engine(), b_);
    if (layout == plain.get_desc()) return plain;
    for (const dnnl::memory& have : weights_) {
      if (have.get_desc() == layout) return have;
    }
    dnnl::memory packed(layout, Engine());
    dnnl::reorder(plain, packed).execute(stream_, plain, packed);
    stream_.wait();
    return weights_.emplace_back(packed);
  }

  void* const b_;
  const int64_t k_, n_;
  const Type type_;
  dnnl::stream stream_;
  std::list<dnnl::memory> weights_;
  std::map<std::pair<int64_t, bool>, Prepared> prepared_;
};

// The same product with agmm's AMX tiles, with B packed before, in blocks of 128 rows as on its
// device.
class LocalTiles {
 public:
  LocalTiles(const BF16* b, int64_t k, int64_t n)
      : k_(k), n_(n), b_(PackedTileBytes(n, k)), scratch_(TileProduct{kRows, n, k}.ScratchBytes()) {
    PackTiles({reinterpret_cast<const std::byte*>(b), n * kElement, DType::kBF16}, n, k, b_.get());
  }

  void Run(const BF16* a, int64_t m, BF16* c) {
    for (int64_t row = 0; row < m; row += kRows) {
      MultiplyTiles({std::min(kRows, m - row), n_, k_},
                    {reinterpret_cast<const std::byte*>(a + row * k_), k_ * kElement, DType::kBF16},
                    b_.get(),
                    {reinterpret_cast<std::byte*>(c + row * n_), n_ * kElement, DType::kBF16},
                    scratch_.get());
    }
  }

 private:
  static constexpr int64_t kRows = 128, kElement = sizeof(BF16);
  struct Aligned {  // on a cache line
    explicit Aligned(int64_t bytes) : memory(bytes + 64) {}
    std::byte* get() {
      return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 *
                                          64);
    }
    std::vector<std::byte> memory;
  };
  const int64_t k_, n_;
  Aligned b_, scratch_;
};

// The same product with oneDNN in f32, which agmm's device uses if it is faster: B is widened and
// packed before, A and C are converted 128 rows at a time.
class LocalWidened {
 public:
  LocalWidened(const BF16* b, int64_t k, int64_t n)
      : k_(k),
        n_(n),
        b_(k * n),
        a_(kRows * k),
        c_(kRows * n),
        gemm_(b_.data(), k, n, LocalGemm::Type::f32) {
    ConvertToF32(DType::kBF16, b, b_.data(), k * n);
  }

  void Run(const BF16* a, int64_t m, BF16* c) {
    for (int64_t row = 0; row < m; row += kRows) {
      const int64_t rows = std::min(kRows, m - row);
      ConvertToF32(DType::kBF16, a + row * k_, a_.data(), rows * k_);
      gemm_.Run(a_.data(), rows, c_.data(), /*packed=*/true);
      ConvertFromF32(DType::kBF16, c_.data(), c + row * n_, rows * n_);
    }
  }

 private:
  static constexpr int64_t kRows = 128;
  const int64_t k_, n_;
  std::vector<float> b_, a_, c_;
  LocalGemm gemm_;
};

}  // namespace agmm::bench
