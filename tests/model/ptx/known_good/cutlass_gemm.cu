// A product with a kernel of CUTLASS, checked bit by bit. Nothing of agmm is in the kernel.
// cutlass.py makes a file for each kernel that includes this one after these definitions:
//
//   ELEMENT_A, ELEMENT_B, ELEMENT_C, ELEMENT_D   types
//   LAYOUT_A, LAYOUT_B                           RowMajor or ColumnMajor
//   TILE, CLUSTER                                "_128, _128, _64"
//   SCHEDULE, EPILOGUE                           of CUTLASS's collective builders
//   SCHEDULER                                    of tiles
//   SPLIT_K                                      1 if the program takes a number of splits
//   GATHER_GPUS                                  0, or the GPUs of a distributed product
//                                                whose stage the kernel is
//
// The program: gemm M N K SMS BETA [SPLITS]. Exit status 0: right; 1: wrong; 4: CUTLASS refuses the
// problem. See run_settings.h.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"
#if GATHER_GPUS
#include "cutlass/experimental/distributed/kernel/dist_gemm_kernel_wrapper.hpp"
#include "cutlass/experimental/distributed/schedules/dist_gemm_1d_schedules.hpp"
#endif

namespace {

using namespace cute;
using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

template <class T>
constexpr int kAlignment = 128 / cutlass::sizeof_bits<T>::value;

using ElementA = ELEMENT_A;
using ElementB = ELEMENT_B;
using ElementC = ELEMENT_C;
using ElementD = ELEMENT_D;
using Tile = Shape<TILE>;
using Cluster = Shape<CLUSTER>;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, ElementC, RowMajor,
    kAlignment<ElementC>, ElementD, RowMajor, kAlignment<ElementD>, EPILOGUE>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, ElementA, LAYOUT_A, kAlignment<ElementA>,
    ElementB, LAYOUT_B, kAlignment<ElementB>, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    SCHEDULE>::CollectiveOp;
using Kernel =
    cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue, SCHEDULER>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

// A matrix of small integers, so that sums are exact. Element (row, col) is at row * cols + col, or
// transposed.
template <class T>
struct Matrix {
  Matrix(int rows, int cols, bool transposed, uint32_t seed)
      : cols(cols), values(size_t(rows) * cols) {
    bytes.resize(values.size() * sizeof(T) + 256);
    data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(bytes.data()) + 255) / 256 * 256);
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < cols; ++col) {
        seed = seed * 1664525 + 1013904223;
        const float value = static_cast<float>(static_cast<int>((seed >> 20) % 9) - 4);
        values[size_t(row) * cols + col] = value;
        data[transposed ? size_t(col) * rows + row : size_t(row) * cols + col] = T(value);
      }
    }
  }
  float At(int row, int col) const { return values[size_t(row) * cols + col]; }

  const int cols;
  std::vector<float> values;
  std::vector<char> bytes;
  T* data;
};

void Check(cutlass::Status status, const char* what) {
  if (status == cutlass::Status::kSuccess) return;
  std::printf("%s: %s\n", what, cutlassGetStatusString(status));
  std::exit(4);
}

}  // namespace

int main(int count, char** arguments) {
  const int m = std::atoi(arguments[1]), n = std::atoi(arguments[2]), k = std::atoi(arguments[3]);
  const float beta = static_cast<float>(std::atof(arguments[5]));
  Matrix<ElementA> a(m, k, std::is_same_v<LAYOUT_A, ColumnMajor>, 1);
  Matrix<ElementB> b(k, n, std::is_same_v<LAYOUT_B, ColumnMajor>, 2);
  Matrix<ElementC> c(m, n, false, 3);
  Matrix<ElementD> d(m, n, false, 4);

  cutlass::KernelHardwareInfo hardware;
  hardware.sm_count = std::atoi(arguments[4]);
  hardware.max_active_clusters = 0;
  typename Gemm::Arguments launch{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {m, n, k, 1},
      {a.data, cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, make_shape(m, k, 1)),
       b.data, cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, make_shape(n, k, 1))},
      {{1.f, beta},
       c.data,
       cutlass::make_cute_packed_stride(typename Kernel::StrideC{}, make_shape(m, n, 1)),
       d.data,
       cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, make_shape(m, n, 1))},
      hardware};
#if SPLIT_K
  if (count > 6) {
    using Parameters = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamKParams;
    launch.scheduler.decomposition_mode = Parameters::DecompositionMode::SplitK;
    launch.scheduler.splits = std::atoi(arguments[6]);
  }
#endif
  Gemm gemm;
  Check(Gemm::can_implement(launch), "can_implement");
  std::vector<char> workspace(Gemm::get_workspace_size(launch) + 256);
  Check(gemm.initialize(
            launch, reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 255) /
                                            256 * 256)),
        "initialize");
#if GATHER_GPUS
  // Its A has been copied, and the copy has set the flag.
  using Stage = cutlass::distributed::kernel::DistributedGemmKernelWrapper<
      Kernel, cutlass::distributed::schedules::AllGather1D_TilingCD_RotatingA<Int<GATHER_GPUS>>>;
  uint32_t flag = 0xff;
  auto stage = Stage::to_underlying_arguments({launch, {0, 1, &flag, nullptr}}, nullptr);
  Check(cutlass::gemm::device::GemmUniversalAdapter<Stage>::run(stage), "run");
#else
  Check(gemm.run(), "run");
#endif

  int wrong = 0;
  std::vector<float> sums(n);
  for (int row = 0; row < m; ++row) {
    std::fill(sums.begin(), sums.end(), 0.f);
    for (int i = 0; i < k; ++i) {
      const float factor = a.At(row, i);
      for (int col = 0; col < n; ++col) sums[col] += factor * b.At(i, col);
    }
    for (int col = 0; col < n; ++col) {
      const ElementD want(sums[col] + beta * c.At(row, col));
      wrong += std::memcmp(&want, d.data + size_t(row) * n + col, sizeof want) != 0;
    }
  }
  std::printf("%d of %d elements are wrong\n", wrong, m * n);
  return wrong != 0;
}
