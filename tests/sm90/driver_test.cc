// The kernels behind the model of the driver: copies raise the slots that they wait for, and the
// race check follows both.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/sm90/product_arguments.h"
#include "kernels/cuda/sm90/product_config.h"
#include "tests/gpu/scratch.h"
#include "tests/model/ptx/arithmetic/floats.h"

namespace agmm::sm90 {
namespace {

constexpr int kRows = 136, kN = 200, kK = 136,
              kPitch = 256;  // of a chunk; the pitch is in elements

// A product on each GPU: C = A * B, whose A is gathered from all GPUs by copies. One process is one
// model.
class GatherTest : public testing::Test, public GpuScratch {
 protected:
  struct Gpu {
    CUdeviceptr a = 0, b = 0, c = 0;  // a: all chunks
    CUdeviceptr slots = 0;            // a word for each chunk
    CUstream copies = nullptr, products = nullptr;
    CUevent copied = nullptr, multiplied = nullptr;
  };

  void Failed(const std::string& call, CUresult result) override {
    ADD_FAILURE() << call << ": error " << result;
  }
  void TearDown() override {
    if (library_ != nullptr) {
      for (Gpu& gpu : gpus_) Check("cuStreamSynchronize", cu.cuStreamSynchronize(gpu.products));
      cu.cuLibraryUnload(library_);
    }
    Close();
  }

  // Products in clusters of 2 CTAs have wide tiles.
  void Begin(const std::string& options, int count, int cluster = 1) {
    setenv("AGMM_MODEL", ("memory=64MiB,gpus=" + std::to_string(count) + "," + options).c_str(), 1);
    ASSERT_EQ(Open(AGMM_MODEL_FOLDER "/libcuda.so.1", count), "");
    std::ifstream file(AGMM_PRODUCT_FATBIN, std::ios::binary);
    image_.assign(std::istreambuf_iterator<char>(file), {});
    Check("cuLibraryLoadData",
          cu.cuLibraryLoadData(&library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    config_ = ProductKernel("bf16", "bf16", cluster > 1 ? 256 : 128, false, cluster);
    config_.ctas = cluster > 1 ? 2 * cluster : 3;
    CUkernel kernel = nullptr;
    Check("cuLibraryGetKernel", cu.cuLibraryGetKernel(&kernel, library_, config_.kernel.c_str()));
    Check("cuKernelGetFunction", cu.cuKernelGetFunction(&function_, kernel));
    Check("cuFuncSetAttribute",
          cu.cuFuncSetAttribute(function_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                config_.shared_bytes));
    std::vector<int> all(count);
    for (int gpu = 0; gpu < count; ++gpu) all[gpu] = gpu;
    epoch_word_ = Host<uint64_t>(1);
    abort_word_ = Host<uint64_t>(1);
    *abort_word_ = 0;
    for (int number = 0; number < count; ++number) {
      Gpu& gpu = gpus_.emplace_back();
      gpu.a = Map(2 << 20, number, all);
      gpu.b = Map(2 << 20, number, {number});
      gpu.c = Map(2 << 20, number, {number});
      gpu.slots = Map(2 << 20, number, all);
      gpu.copies = Stream(number);
      gpu.products = Stream(number);
      gpu.copied = Event(number);
      gpu.multiplied = Event(number);
      On(number, [&] {
        Check("cuMemsetD8Async", cu.cuMemsetD8Async(gpu.slots, 0, 4096, gpu.products));
        Check("cuStreamSynchronize", cu.cuStreamSynchronize(gpu.products));
      });
    }
    a_ = Host<uint16_t>(count * kRows * kPitch);
    b_ = Host<uint16_t>(kK * kPitch);
    c_ = Host<uint16_t>(count * kRows * kPitch);
  }

  CUdeviceptr Chunk(const Gpu& gpu, int chunk) const { return gpu.a + chunk * kRows * kPitch * 2; }

  CUtensorMap MapOf(CUdeviceptr address, int rows, int cols, int box_rows) {
    CUtensorMap map;
    const cuuint64_t dims[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)},
                     strides[] = {kPitch * 2};
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
    Check("cuTensorMapEncodeTiled",
          cu.cuTensorMapEncodeTiled(
              &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, reinterpret_cast<void*>(address), dims,
              strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
              CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
  }

  // New operands, at their owners, before the epoch.
  void Put(uint64_t epoch) {
    uint32_t seed = static_cast<uint32_t>(epoch);
    const auto next = [&] {
      seed = seed * 1664525 + 1013904223;
      return ptx::BF16OfFloat(static_cast<float>(static_cast<int>((seed >> 20) % 5) - 2));
    };
    const int count = static_cast<int>(gpus_.size());
    for (int i = 0; i < count * kRows * kPitch; ++i) a_[i] = next();
    for (int i = 0; i < kK * kPitch; ++i) b_[i] = next();
    *epoch_word_ = epoch;
    for (int number = 0; number < count; ++number) {
      Gpu& gpu = gpus_[number];
      On(number, [&] {
        Check("put A", cu.cuMemcpyHtoDAsync(Chunk(gpu, number), a_ + number * kRows * kPitch,
                                            kRows * kPitch * 2, gpu.products));
        Check("put B", cu.cuMemcpyHtoDAsync(gpu.b, b_, kK * kPitch * 2, gpu.products));
        Check("poison C",
              cu.cuMemsetD8Async(gpu.c, 0xff, count * kRows * kPitch * 2, gpu.products));
        Check("synchronize", cu.cuStreamSynchronize(gpu.products));
      });
    }
  }

  // Copies the other GPUs' chunks, and raises a slot behind each of them.
  void Gather(int number, int left_out = -1) {
    Gpu& gpu = gpus_[number];
    const int count = static_cast<int>(gpus_.size());
    On(number, [&] {
      for (int step = 1; step < count; ++step) {
        const int chunk = (number + step) % count;
        if (chunk == left_out) continue;
        Check("copy", cu.cuMemcpyDtoDAsync(Chunk(gpu, chunk), Chunk(gpus_[chunk], chunk),
                                           kRows * kPitch * 2, gpu.copies));
        Check("raise", cu.cuMemcpyHtoDAsync(gpu.slots + 8 * chunk, epoch_word_, 8, gpu.copies));
      }
    });
  }

  // Launches the kernel, which computes its own chunk first.
  void Multiply(int number, uint64_t epoch) {
    Gpu& gpu = gpus_[number];
    const int count = static_cast<int>(gpus_.size());
    auto arguments = std::make_unique<Arguments>();
    std::memset(static_cast<void*>(arguments.get()), 0, sizeof(Arguments));
    arguments->maps[0] = MapOf(gpu.b, kK, kN, 64);
    for (int step = 0; step < count; ++step) {
      const int chunk = (number + step) % count;
      arguments->maps[1 + step] = MapOf(Chunk(gpu, chunk), kRows, kK, kTileRows);
      Piece& piece = arguments->pieces[step];
      piece = {.a = {1 + step, 0}, .b = {0, 0}, .k = kK};
      if (step > 0) piece.waits[0] = reinterpret_cast<const uint64_t*>(gpu.slots + 8 * chunk);
      arguments->blocks[step] = {.rows = kRows,
                                 .cols = kN,
                                 .first_piece = step,
                                 .pieces = 1,
                                 .c = reinterpret_cast<void*>(gpu.c + chunk * kRows * kPitch * 2),
                                 .pitch = kPitch};
    }
    arguments->block_count = count;
    arguments->raster_rows = config_.raster_rows;
    arguments->send_columns = config_.send_columns;
    arguments->epoch = epoch;
    arguments->abort = abort_word_;
    arguments->trace = trace_;
    void* parameters[] = {arguments.get()};
    On(number, [&] {
      Check("cuLaunchKernel",
            cu.cuLaunchKernel(function_, config_.ctas, 1, 1, kThreads, 1, 1, config_.shared_bytes,
                              gpu.products, parameters, nullptr));
    });
  }

  int CountWrong(int number) {
    Gpu& gpu = gpus_[number];
    const int rows = static_cast<int>(gpus_.size()) * kRows;
    On(number, [&] {
      Check("get C", cu.cuMemcpyDtoHAsync(c_, gpu.c, rows * kPitch * 2, gpu.products));
      Check("synchronize", cu.cuStreamSynchronize(gpu.products));
      Check("synchronize", cu.cuStreamSynchronize(gpu.copies));
    });
    int wrong = 0;
    std::vector<float> sums(kN);
    for (int row = 0; row < rows; ++row) {
      std::fill(sums.begin(), sums.end(), 0.f);
      for (int k = 0; k < kK; ++k) {
        const float factor = ptx::FloatOfBF16(a_[row * kPitch + k]);
        for (int col = 0; col < kN; ++col)
          sums[col] += factor * ptx::FloatOfBF16(b_[k * kPitch + col]);
      }
      for (int col = 0; col < kN; ++col)
        wrong += c_[row * kPitch + col] != ptx::BF16OfFloat(sums[col]);
      for (int col = kN; col < kPitch; ++col) wrong += c_[row * kPitch + col] != 0xffff;
    }
    return wrong;
  }

  // Returns how many clusters the driver says to fit on a GPU.
  int CountClusters() {
    CUlaunchConfig launch = {};
    launch.gridDimX = config_.cluster;
    launch.blockDimX = kThreads;
    launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1;
    launch.sharedMemBytes = config_.shared_bytes;
    int clusters = 0;
    On(0, [&] {
      Check("cuOccupancyMaxActiveClusters",
            cu.cuOccupancyMaxActiveClusters(&clusters, function_, &launch));
    });
    return clusters;
  }

  std::vector<Gpu> gpus_;
  uint64_t* abort_word_ = nullptr;  // of all GPUs
  TileTrace* trace_ = nullptr;

 private:
  std::vector<char> image_;
  CUlibrary library_ = nullptr;
  CUfunction function_ = nullptr;
  ProductConfig config_;
  uint16_t *a_ = nullptr, *b_ = nullptr, *c_ = nullptr;
  uint64_t* epoch_word_ = nullptr;
};

TEST_F(GatherTest, ATraceShowsTheTilesThatWait) {
  Begin("order=random", 2);
  constexpr int kTiles = 8;  // 4 for each chunk
  trace_ = Host<TileTrace>(kTiles);
  std::fill_n(trace_, kTiles, TileTrace());
  Put(1);
  Gather(0, 1);
  Multiply(0, 1);
  *abort_word_ = 1;
  On(0, [&] { Check("synchronize", cu.cuStreamSynchronize(gpus_[0].products)); });
  // Each of the 3 CTAs begins a tile of the missing chunk.
  for (int tile = 0; tile < kTiles; ++tile) {
    const TileTrace& record = trace_[tile];
    EXPECT_EQ(record.start_ns > 0, tile < 7) << tile;
    EXPECT_EQ(record.block, tile < 7 ? tile / 4 : 0) << tile;
    for (const uint64_t later : {record.waited_ns, record.end_ns[0], record.end_ns[1]}) {
      EXPECT_EQ(later > record.start_ns, tile < 4) << tile;
      EXPECT_EQ(later > 0, tile < 4) << tile;
    }
  }
}

class GatherOrders : public GatherTest, public testing::WithParamInterface<const char*> {};

TEST_P(GatherOrders, CopiesRaiseTheSlotsOfAKernelThatIsLaunchedLast) {
  Begin(GetParam(), 3);
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    Put(epoch);
    for (int gpu = 0; gpu < 3; ++gpu) Gather(gpu);
    for (int gpu = 0; gpu < 3; ++gpu) Multiply(gpu, epoch);
    for (int gpu = 0; gpu < 3; ++gpu)
      EXPECT_EQ(CountWrong(gpu), 0) << "epoch " << epoch << ", GPU " << gpu;
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, GatherOrders,
                         testing::Values("order=eager", "order=lazy", "order=random,seed=1",
                                         "order=random,seed=2,channels=1",
                                         "order=newest,channels=2"),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });

TEST_F(GatherTest, ClustersOfTheKernelItselfWaitForCopies) {
  Begin("order=random,seed=3", 3, 2);
  EXPECT_EQ(CountClusters(), 66);
  for (uint64_t epoch = 1; epoch <= 2; ++epoch) {
    Put(epoch);
    for (int gpu = 0; gpu < 3; ++gpu) Gather(gpu);
    for (int gpu = 0; gpu < 3; ++gpu) Multiply(gpu, epoch);
    for (int gpu = 0; gpu < 3; ++gpu)
      EXPECT_EQ(CountWrong(gpu), 0) << "epoch " << epoch << ", GPU " << gpu;
  }
}

// With one channel, work behind the kernel cannot run, so no copy could set the word.
TEST_F(GatherTest, AnAbortedKernelEndsAlthoughAChunkIsMissing) {
  Begin("order=random,channels=1", 2);
  Put(1);
  Gather(0, 1);
  Multiply(0, 1);
  On(0, [&] {
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(cu.cuStreamQuery(gpus_[0].products), CUDA_ERROR_NOT_READY);
    }
    *abort_word_ = 1;
    EXPECT_EQ(cu.cuStreamSynchronize(gpus_[0].products), CUDA_SUCCESS);
  });
}

using GatherDeathTest = GatherTest;
TEST_F(GatherDeathTest, ANextEpochThatDoesNotWaitForTheKernelIsARace) {
  const auto run = [&] {
    Begin("order=eager", 2);
    Put(1);
    Gather(0);
    Multiply(0, 1);
    Gather(0);  // without an order behind the kernel that reads the chunk
    cu.cuStreamSynchronize(gpus_[0].products);
    cu.cuStreamSynchronize(gpus_[0].copies);
  };
  EXPECT_DEATH(run(), "race: .*agmm_product_bf16_bf16_128");
}

TEST_F(GatherDeathTest, AKernelThatMissesAChunkIsADeadlockThatNamesItsWait) {
  const auto run = [&] {
    Begin("order=eager", 2);
    Put(1);
    Gather(0, 1);
    Multiply(0, 1);
    cu.cuStreamSynchronize(gpus_[0].products);
  };
  EXPECT_DEATH(run(), "deadlock: .*signal.h:[0-9]+.*agmm_product_bf16_bf16_128 #");
}

}  // namespace
}  // namespace agmm::sm90
