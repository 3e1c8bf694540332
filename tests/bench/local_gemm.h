// C[m, n] = A[m, k] * B[k, n] in bf16 with sums in f32: one plain oneDNN call on the caller's
// thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cpu/tiles.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "tests/bench/contender_rank.h"

namespace agmm::bench {

class LocalGemm {
 public:
  // `b` is [k, n], row-major, and stays the caller's.
  LocalGemm(BF16* b, int64_t k, int64_t n) : b_(b), k_(k), n_(n), stream_(Engine()) {}

  // With `packed`, B is in the layout that oneDNN likes best for m rows; Prepare has made it.
  void Run(BF16* a, int64_t m, BF16* c, bool packed) {
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
    const dnnl::memory::desc any({k_, n_}, kType, dnnl::memory::format_tag::any);
    const dnnl::matmul::primitive_desc description({a, packed ? any : plain, c}, Engine());
    Prepared one{dnnl::matmul(description), dnnl::memory(a, Engine(), DNNL_MEMORY_NONE),
                 Weights(description.weights_desc()), dnnl::memory(c, Engine(), DNNL_MEMORY_NONE)};
    return prepared_.emplace(std::pair(m, packed), std::move(one)).first->second;
  }

 private:
  static constexpr auto kType = dnnl::memory::data_type::bf16;
  static const dnnl::engine& Engine() {  // with a second one in a process, execution fails
    static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
    return *engine;
  }
  static dnnl::memory::desc RowMajor(int64_t rows, int64_t cols) {
    return dnnl::memory::desc({rows, cols}, kType, dnnl::memory::format_tag::ab);
  }
  // B in this layout, once for all numbers of rows that want it.
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

  BF16* const b_;
  const int64_t k_, n_;
  dnnl::stream stream_;
  std::list<dnnl::memory> weights_;
  std::map<std::pair<int64_t, bool>, Prepared> prepared_;
};

// The same by agmm's own tiles, 128 rows at a time, as its device does it: B packed before.
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

}  // namespace agmm::bench
