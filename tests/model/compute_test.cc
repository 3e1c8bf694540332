// Kernels that run as PTX: what they wait for, and the race check of them and of other work.
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "kernels/cuda/elementwise.h"
#include "tests/model/model_fixture.h"

namespace {

using agmm::DType;
using agmm::elementwise::Convert;
using agmm::elementwise::Fill;
using agmm::elementwise::Reduce;

constexpr int kWords = 200;

class ComputeTest : public ModelTest {
 protected:
  void Begin(const std::string& options = "order=random") {
    Start(options);
    std::ifstream file(AGMM_COMPUTE_FATBIN, std::ios::binary);
    image_.assign(std::istreambuf_iterator<char>(file), {});
    EXPECT_CU(
        cu.cuLibraryLoadData(&library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    first = Stream();
    second = Stream();
    from = Device(kWords * 4);
    to = Device(kWords * 4);
    slot = Device(8);
    EXPECT_CU(cu.cuMemsetD8Async(slot, 0, 8, first));
    EXPECT_CU(cu.cuMemsetD8Async(to, 0, kWords * 4, first));
    EXPECT_CU(cu.cuStreamSynchronize(first));
    data = Host<uint32_t>(kWords);
    result = Host<uint32_t>(kWords);
    epoch = Host<uint64_t>(1);
    for (int i = 0; i < kWords; ++i) data[i] = 1000 + i;
    *epoch = 7;
  }
  void TearDown() override {
    if (library_ != nullptr) cu.cuLibraryUnload(library_);
    ModelTest::TearDown();
  }
  CUfunction Function(const char* name) {
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    EXPECT_CU(cu.cuLibraryGetKernel(&kernel, library_, name));
    EXPECT_CU(cu.cuKernelGetFunction(&function, kernel));
    return function;
  }
  template <typename... Arguments>
  CUresult Launch(const char* name, CUstream stream, int threads, int shared_bytes,
                  Arguments... arguments) {
    void* pointers[] = {&arguments...};
    return cu.cuLaunchKernel(Function(name), 1, 1, 1, threads, 1, 1, shared_bytes, stream, pointers,
                             nullptr);
  }
  CUresult WaitAndAdd(CUstream stream) {
    return Launch("test_wait_and_add", stream, 64, 0, slot, uint64_t{7}, from, to, kWords);
  }
  CUresult Raise(CUstream stream) { return cu.cuMemcpyHtoDAsync(slot, epoch, 8, stream); }
  CUresult Put(CUstream stream) { return cu.cuMemcpyHtoDAsync(from, data, kWords * 4, stream); }
  CUresult Get(CUstream stream) { return cu.cuMemcpyDtoHAsync(result, to, kWords * 4, stream); }

  CUstream first = nullptr, second = nullptr;
  CUdeviceptr from = 0, to = 0, slot = 0;
  uint32_t *data = nullptr, *result = nullptr;
  uint64_t* epoch = nullptr;

 private:
  std::vector<char> image_;
  CUlibrary library_ = nullptr;
};
using ComputeDeathTest = ComputeTest;

class ComputeOrders : public ComputeTest, public testing::WithParamInterface<const char*> {};

TEST_P(ComputeOrders, AKernelWaitsForAWordThatACopyRaises) {
  Begin(GetParam());
  EXPECT_CU(WaitAndAdd(first));
  EXPECT_CU(Get(first));
  EXPECT_CU(Put(second));
  EXPECT_CU(Raise(second));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  for (int i = 0; i < kWords; ++i) EXPECT_EQ(result[i], 1001u + i);
}

TEST_P(ComputeOrders, AKernelThatIsSubmittedLastNeedsNoChannelOfItsOwn) {
  Begin(std::string(GetParam()) + ",channels=1");
  EXPECT_CU(Put(second));
  EXPECT_CU(Raise(second));
  EXPECT_CU(WaitAndAdd(first));
  EXPECT_CU(Get(first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  for (int i = 0; i < kWords; ++i) EXPECT_EQ(result[i], 1001u + i);
}

TEST_F(ComputeDeathTest, AKernelBlocksTheWorkBehindItInItsChannel) {
  const auto run = [&] {
    Begin("order=random,channels=1");
    WaitAndAdd(first);
    Put(second);
    Raise(second);
    cu.cuStreamSynchronize(first);
  };
  EXPECT_DEATH(run(), "deadlock: .*channel 0 .3 operations. begins with test_wait_and_add");
}

TEST_P(ComputeOrders, AKernelWaitsForAKernelOfAnotherGpu) {
  Begin(GetParam());
  const CUdeviceptr shared = Map(2 << 20, 0, {0, 1});
  EXPECT_CU(cu.cuMemsetD8Async(shared, 0, 8, first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  const CUstream other = Stream(1);
  EXPECT_CU(
      Launch("test_wait_and_add", first, 64, 0, shared, uint64_t{1}, shared + 256, to, kWords));
  On(1, [&] {
    EXPECT_CU(
        Launch("test_store_and_raise", other, 64, 0, shared + 256, kWords, shared, uint64_t{1}));
  });
  EXPECT_CU(Get(first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  for (int i = 0; i < kWords; ++i) EXPECT_EQ(result[i], 101u + i);
}

TEST_P(ComputeOrders, StreamsAndEventsOrderKernelsAndCopies) {
  Begin(GetParam());
  EXPECT_CU(Put(first));
  EXPECT_CU(Raise(first));
  EXPECT_CU(WaitAndAdd(first));
  const CUevent event = Event();
  EXPECT_CU(cu.cuEventRecord(event, first));
  EXPECT_CU(cu.cuStreamWaitEvent(second, event, CU_EVENT_WAIT_DEFAULT));
  EXPECT_CU(Get(second));
  EXPECT_CU(cu.cuStreamSynchronize(second));
  for (int i = 0; i < kWords; ++i) EXPECT_EQ(result[i], 1001u + i);
}

INSTANTIATE_TEST_SUITE_P(Orders, ComputeOrders,
                         testing::Values("order=eager", "order=lazy", "order=random,seed=1",
                                         "order=random,seed=2", "order=newest"),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });

TEST_F(ComputeDeathTest, AWordThatIsRaisedBeforeTheDataIsARace) {
  const auto run = [&] {
    Begin("order=random");
    WaitAndAdd(first);
    Raise(second);
    Put(second);
    cu.cuStreamSynchronize(first);
    cu.cuStreamSynchronize(second);
  };
  EXPECT_DEATH(run(),
               "race: .*test_wait_and_add.*the host or a copy|race: .*the host or a "
               "copy.*test_wait_and_add");
}

// The end of a kernel waits for its bulk stores, so the copy of the result needs no more.
TEST_P(ComputeOrders, BulkCopiesAfterASlotOfACopyAreOrderedByAFence) {
  Begin(GetParam());
  EXPECT_CU(Put(second));
  EXPECT_CU(Raise(second));
  EXPECT_CU(Launch("test_wait_and_copy", first, 32, 0, slot, uint64_t{7}, from, to, 1));
  EXPECT_CU(Get(first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(result[i], 1000u + i);
}

TEST_F(ComputeDeathTest, BulkCopiesAfterASlotOfACopyNeedTheFence) {
  const auto run = [&] {
    Begin("order=eager");
    Put(second);
    Raise(second);
    Launch("test_wait_and_copy", first, 32, 0, slot, uint64_t{7}, from, to, 0);
    cu.cuStreamSynchronize(first);
  };
  EXPECT_DEATH(run(),
               "race: asynchronous read after write, without a proxy fence: test_wait_and_copy");
}

TEST_P(ComputeOrders, AKernelEndsAlthoughAnotherOneWaits) {
  Begin(GetParam());
  const CUstream third = Stream();
  EXPECT_CU(WaitAndAdd(first));
  EXPECT_CU(Launch("test_store_and_raise", third, 64, 0, from, kWords, slot + 0, uint64_t{7}));
  EXPECT_CU(cu.cuStreamSynchronize(third));
  EXPECT_CU(Get(first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  for (int i = 0; i < kWords; ++i) EXPECT_EQ(result[i], 101u + i);
}

TEST_F(ComputeTest, AKernelOfALostGpuHasNoEffectAnyMore) {
  Begin("order=random,lose=1@1");
  const CUdeviceptr shared = Map(2 << 20, 0, {0, 1});
  const CUstream other = Stream(1);
  On(1, [&] {
    Launch("test_store_and_raise", other, 64, 0, shared, kWords, shared + 4096, uint64_t{1});
  });
  On(1, [&] { EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_ERROR_LAUNCH_FAILED); });
  EXPECT_CU(Put(first));
  EXPECT_CU(Raise(first));
  EXPECT_CU(WaitAndAdd(first));
  EXPECT_CU(Get(first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  for (int i = 0; i < kWords; ++i) EXPECT_EQ(result[i], 1001u + i);
}

TEST_F(ComputeTest, ManyLaunchesUseTheSameAgents) {
  Begin("order=eager");
  EXPECT_CU(Put(first));
  for (int i = 0; i < 3000; ++i) {
    EXPECT_CU(Launch("test_store_and_raise", first, 256, 0, to, kWords, slot, uint64_t{7}));
  }
  EXPECT_CU(Get(first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  for (int i = 0; i < kWords; ++i) EXPECT_EQ(result[i], 100u + i);
}

TEST_F(ComputeDeathTest, ACopyThatNothingOrdersBehindAKernelIsARace) {
  const auto run = [&] {
    Begin("order=random");
    Put(first);
    Raise(first);
    WaitAndAdd(first);
    Get(second);
    cu.cuStreamSynchronize(first);
    cu.cuStreamSynchronize(second);
  };
  EXPECT_DEATH(run(), "race: .*test_wait_and_add");
}

TEST_F(ComputeDeathTest, AWaitThatNothingEndsIsADeadlockWithItsLine) {
  const auto run = [&] {
    Begin("order=eager");
    WaitAndAdd(first);
    cu.cuStreamSynchronize(first);
  };
  EXPECT_DEATH(run(),
               "deadlock: nothing that was submitted can run;.*GPU 0 CTA 0,0,0 warp 0: PTX line");
}

TEST_F(ComputeDeathTest, MemoryThatAKernelMayUseIsNotFreed) {
  const auto run = [&] {
    Begin("order=random");
    const CUdeviceptr memory = Map(2 << 20, 0, {0});
    Launch("test_store_and_raise", first, 64, 0, memory, kWords, slot, uint64_t{1});
    while (cu.cuStreamQuery(second) != CUDA_SUCCESS || true) {
      cu.cuMemcpyDtoHAsync(result, slot, 8, second);
      cu.cuStreamSynchronize(second);
      if (result[0] == 1) break;
    }
    cu.cuMemUnmap(memory, 2 << 20);
  };
  EXPECT_DEATH(run(), "race: memory is taken away, .*test_store_and_raise");
}

TEST_F(ComputeTest, SharedMemoryBeyond48KibNeedsTheAttribute) {
  Begin();
  EXPECT_EQ(Launch("test_through_shared", first, 64, 64 << 10, to, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(cu.cuFuncSetAttribute(Function("test_through_shared"),
                                  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 << 10));
  EXPECT_CU(Launch("test_through_shared", first, 64, 64 << 10, to, 64));
  EXPECT_CU(Get(first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(result[i], i ^ 1);
}

TEST_F(ComputeTest, ClustersFitAsOftenAsTheirCtas) {
  Begin();
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {4, 1, 1};
  CUlaunchConfig launch = {};
  launch.gridDimX = 4;
  launch.blockDimX = 64;
  launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1;
  launch.attrs = &attribute;
  const CUfunction kernel = Function("test_through_shared");
  int clusters = 0;
  EXPECT_EQ(cu.cuOccupancyMaxActiveClusters(&clusters, kernel, &launch),
            CUDA_ERROR_INVALID_CLUSTER_SIZE)
      << "neither the launch nor the kernel has a cluster";
  launch.numAttrs = 1;
  EXPECT_CU(cu.cuOccupancyMaxActiveClusters(&clusters, kernel, &launch));
  EXPECT_EQ(clusters, 132 / 4);
  launch.sharedMemBytes = 64 << 10;
  EXPECT_EQ(cu.cuOccupancyMaxActiveClusters(&clusters, kernel, &launch), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ComputeTest, AnUnknownKernelIsNotFound) {
  Begin();
  std::ifstream file(AGMM_COMPUTE_FATBIN, std::ios::binary);
  const std::vector<char> image(std::istreambuf_iterator<char>(file), {});
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  EXPECT_CU(cu.cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  EXPECT_EQ(cu.cuLibraryGetKernel(&kernel, library, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
  EXPECT_CU(cu.cuLibraryUnload(library));
}

// The same work by the host's body and by the PTX of the same source.
class Twins : public ComputeTest {
 protected:
  static constexpr int64_t kRows = 3, kCols = 70, kPitch = 512;

  CUdeviceptr RandomMatrix(uint32_t seed) {
    uint32_t* const host = Host<uint32_t>(kRows * kPitch / 4);
    std::mt19937 random(seed);
    for (int64_t i = 0; i < kRows * kPitch / 4; ++i) {
      // Numbers of each kind, NaN and infinity among them; the halves are f16 and bf16 of each
      // kind, too.
      host[i] = random() % 4 == 0 ? 0x7f800000 | (random() & 0x80400000) : random();
    }
    const CUdeviceptr memory = Device(kRows * kPitch);
    EXPECT_CU(cu.cuMemcpyHtoDAsync(memory, host, kRows * kPitch, first));
    return memory;
  }
  template <typename Work>
  std::vector<char> Run(const char* name, Work work) {
    const CUdeviceptr out = Device(kRows * kPitch);
    EXPECT_CU(cu.cuMemsetD8Async(out, 0x5a, kRows * kPitch, first));
    work.to.data = reinterpret_cast<void*>(out);
    void* pointers[] = {&work};
    EXPECT_CU(cu.cuLaunchKernel(Function(name), 2, 2, 1, 32, 1, 1, 0, first, pointers, nullptr));
    char* const host = Host<char>(kRows * kPitch);
    EXPECT_CU(cu.cuMemcpyDtoHAsync(host, out, kRows * kPitch, first));
    EXPECT_CU(cu.cuStreamSynchronize(first));
    return {host, host + kRows * kPitch};
  }
};

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Makes all NaN equal: a GPU's sums give one pattern, the host's keep the bits of a term.
std::vector<char> WithOneNan(std::vector<char> bytes, DType dtype) {
  const size_t size = agmm::SizeOf(dtype);
  const uint32_t infinity = dtype == DType::kF32    ? 0x7f800000
                            : dtype == DType::kBF16 ? 0x7f80
                                                    : 0x7c00;
  const uint32_t all = dtype == DType::kF32 ? 0x7fffffff : 0x7fff;
  for (size_t at = 0; at + size <= bytes.size(); at += size) {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes[at], size);
    if ((bits & all) > infinity) std::memcpy(&bytes[at], &all, size);
  }
  return bytes;
}

TEST_F(Twins, ConvertGivesEqualBits) {
  Begin("order=eager");
  const CUdeviceptr from = RandomMatrix(1);
  for (const DType source : kDTypes) {
    for (const DType target : kDTypes) {
      if (source != target && source != DType::kF32 && target != DType::kF32) continue;
      Convert work;
      work.from = {reinterpret_cast<void*>(from), kPitch, source};
      work.to = {nullptr, kPitch, target};
      work.rows = kRows, work.cols = kCols;
      EXPECT_EQ(Run("agmm_convert", work), Run("test_convert", work));
    }
  }
}

TEST_F(Twins, ReduceGivesEqualBits) {
  Begin("order=eager");
  const CUdeviceptr terms[] = {RandomMatrix(1), RandomMatrix(2), RandomMatrix(3)};
  for (const DType source : kDTypes) {
    for (const DType target : kDTypes) {
      for (const int count : {1, 2, 3}) {
        Reduce work;
        for (int i = 0; i < count; ++i)
          work.from[i] = {reinterpret_cast<void*>(terms[i]), kPitch, source};
        work.terms = count;
        work.to = {nullptr, kPitch, target};
        work.rows = kRows, work.cols = kCols;
        EXPECT_EQ(WithOneNan(Run("agmm_reduce", work), target),
                  WithOneNan(Run("test_reduce", work), target));
      }
    }
  }
}

TEST_F(Twins, FillGivesEqualBits) {
  Begin("order=eager");
  for (const DType target : kDTypes) {
    for (const auto kind :
         {agmm::FillKind::kUniform, agmm::FillKind::kIntegers, agmm::FillKind::kConstant}) {
      Fill work;
      work.to = {nullptr, kPitch, target};
      work.rows = kRows, work.cols = kCols;
      work.fill = {kind, 99, -2.75};
      work.most = 0.5f;
      work.first_index = 12345, work.index_stride = 1000;
      EXPECT_EQ(Run("agmm_fill", work), Run("test_fill", work));
    }
  }
}

}  // namespace
