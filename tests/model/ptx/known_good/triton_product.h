// Products with the kernels of triton_kernels.py.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/ptx/arithmetic/floats.h"
#include "tests/model/ptx/bulk/tensor_map.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {

// A matrix of f16 in memory of GPU 0, row-major and dense.
struct HalfMatrix {
  HalfMatrix(HostMemory& memory, int rows, int cols)
      : rows(rows),
        cols(cols),
        data(static_cast<uint16_t*>(std::aligned_alloc(128, (bytes() + 127) / 128 * 128)),
             &std::free) {
    memory.Add(data.get(), bytes(), 0);
  }
  uint64_t bytes() const { return uint64_t{2} * rows * cols; }
  uint16_t& At(int row, int col) { return data.get()[row * cols + col]; }
  // Small integers, so that sums are exact.
  void Fill(uint32_t seed) {
    for (int i = 0; i < rows * cols; ++i) {
      seed = seed * 1664525 + 1013904223;
      data.get()[i] = F16OfFloat(static_cast<float>(static_cast<int>((seed >> 20) % 9) - 4));
    }
  }
  // A map with boxes of 64 rows and 64 columns.
  TensorMap Map() const {
    TensorMap map;
    map.type = 6;  // FLOAT16
    map.rank = 2;
    map.swizzle = 3;
    map.element_bytes = 2;
    map.address = reinterpret_cast<uint64_t>(data.get());
    map.dims[0] = cols, map.dims[1] = rows;
    map.strides[0] = uint64_t{2} * cols;
    map.box[0] = map.box[1] = 64;
    map.element_strides[0] = map.element_strides[1] = 1;
    if (const std::string rule = CheckTensorMap(map); !rule.empty()) throw Stop(rule);
    return map;
  }

  const int rows, cols;
  std::unique_ptr<uint16_t, decltype(&std::free)> data;
};

// A product of one of the kernels "masked", "tiles" and "maps", with operands of its own. All sizes
// are ragged. The kernels have code of their own for an inner dimension `k` of 0.
class TritonProduct {
 public:
  static constexpr int kM = 136, kN = 200, kK = 328, kPrograms = 4;

  explicit TritonProduct(const std::string& name, int k = kK)
      : name_(name),
        k_(k),
        transposed_(name != "masked"),
        a_(memory_, kM, kK),
        b_(memory_, transposed_ ? kN : kK, transposed_ ? kK : kN),
        c_(memory_, kM, kN) {
    a_.Fill(1);
    b_.Fill(2);
    std::fill_n(c_.data.get(), kM * kN, uint16_t{0x7e00});  // NaN
    std::memset(scratch_, 0, sizeof scratch_);
    memory_.Add(scratch_, sizeof scratch_, 0);
  }

  // Runs the kernel of the module. Throws Stop.
  std::unique_ptr<World> Run(Module& module, const RunOptions& options) {
    auto world = std::make_unique<World>(memory_, options);
    for (const HalfMatrix* const matrix : {&a_, &b_}) {
      world->races.SetWritten(reinterpret_cast<uint64_t>(matrix->data.get()), matrix->bytes());
    }
    Launch launch{.module = &module, .kernel = module.kernels.at(name_).get()};
    launch.block[0] = 128;
    launch.grid[0] = transposed_ ? kPrograms : (kM + 63) / 64;
    launch.grid[1] = transposed_ ? 1 : (kN + 63) / 64;
    launch.dynamic_shared_bytes = transposed_ ? 57368 : 16384;
    launch.parameters = Parameters(*launch.kernel);
    world->Start(std::move(launch));
    world->Run();
    return world;
  }

  int CountWrong() {
    int wrong = 0;
    for (int row = 0; row < kM; ++row) {
      for (int col = 0; col < kN; ++col) {
        float sum = 0;
        for (int k = 0; k < k_; ++k) {
          sum +=
              FloatOfF16(a_.At(row, k)) * FloatOfF16(transposed_ ? b_.At(col, k) : b_.At(k, col));
        }
        wrong += c_.At(row, col) != F16OfFloat(sum);
      }
    }
    return wrong;
  }

 private:
  // Triton appends two pointers to scratch memory to the arguments of the source.
  std::vector<std::byte> Parameters(const Kernel& kernel) const {
    const void* const none = nullptr;
    const void* const scratch = scratch_;
    const void *const a = a_.data.get(), *const b = b_.data.get(), *const c = c_.data.get();
    const int m = kM, n = kN, k = k_, pitch_a = kK;
    if (name_ == "masked") {
      const void* const all[] = {&a, &b, &c, &m, &n, &k, &pitch_a, &n, &n, &none, &none};
      return PackParameters(kernel, all);
    }
    if (name_ == "maps") {
      const void* const all[] = {&a, &b, &c, &m, &n, &k, &scratch, &none};
      return PackParameters(kernel, all);
    }
    // A descriptor of the host is passed as a map, two sizes and two strides.
    const TensorMap map_a = a_.Map(), map_b = b_.Map(), map_c = c_.Map();
    const int size = 0;
    const int64_t stride = 0;
    std::vector<const void*> all;
    for (const TensorMap* const map : {&map_a, &map_b, &map_c}) {
      all.insert(all.end(), {map, &size, &size, &stride, &stride});
    }
    all.insert(all.end(), {&m, &n, &k, &none, &none});
    return PackParameters(kernel, all.data());
  }

  const std::string name_;
  const int k_;
  const bool transposed_;  // B is [N, K]
  HostMemory memory_;
  HalfMatrix a_, b_, c_;
  alignas(128) std::byte scratch_[kPrograms * 384];
};

}  // namespace ptx
