// Addresses, access rights, accounting and leaks.
#include "tests/model/model_fixture.h"

namespace {

class MemoryTest : public ModelTest {
 protected:
  size_t FreeBytes() {
    size_t free = 0, total = 0;
    EXPECT_CU(cu.cuMemGetInfo(&free, &total));
    EXPECT_EQ(total, 8 * kMiB);
    return free;
  }
};
using MemoryDeathTest = MemoryTest;

TEST_F(MemoryDeathTest, TheHostCannotTouchDeviceMemory) {
  Start();
  auto* memory = reinterpret_cast<volatile char*>(Device(64));
  EXPECT_DEATH(*memory = 1, "");
  EXPECT_DEATH((void)*memory, "");
}

TEST_F(MemoryTest, AllocationsCountInGranules) {
  Start("memory=8MiB");
  Device(1);
  EXPECT_EQ(FreeBytes(), 6 * kMiB);
  Map(4 * kMiB, 0, {0});
  EXPECT_EQ(FreeBytes(), 2 * kMiB);
  const auto [address, bytes] = mapped.back();
  mapped.pop_back();
  EXPECT_CU(cu.cuMemUnmap(address, bytes));
  EXPECT_CU(cu.cuMemAddressFree(address, bytes));
  EXPECT_EQ(FreeBytes(), 6 * kMiB);
}

TEST_F(MemoryTest, AFailedCreateTakesNothing) {
  Start("memory=8MiB");
  const CUmemAllocationProp prop = OnGpu(0);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cu.cuMemCreate(&handle, 10 * kMiB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu.cuMemCreate(&handle, kMiB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(FreeBytes(), 8 * kMiB);
  EXPECT_CU(cu.cuMemCreate(&handle, 8 * kMiB, &prop, 0));
  EXPECT_EQ(FreeBytes(), 0u);
  EXPECT_CU(cu.cuMemRelease(handle));
}

TEST_F(MemoryTest, UseWithoutAccessIsSticky) {
  Start("gpus=2");
  const CUdeviceptr memory = Map(2 * kMiB, 0, {0});
  const CUstream mine = Stream(0), theirs = Stream(1);
  EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 100, mine));
  EXPECT_CU(cu.cuStreamSynchronize(mine));
  On(1, [&] {
    EXPECT_CU(cu.cuMemsetD8Async(memory, 2, 100, theirs));
    EXPECT_EQ(cu.cuStreamSynchronize(theirs), CUDA_ERROR_ILLEGAL_ADDRESS);
    CUdeviceptr more = 0;
    EXPECT_EQ(cu.cuMemAlloc(&more, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cu.cuStreamQuery(theirs), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  EXPECT_CU(cu.cuMemsetD8Async(memory, 3, 100, mine));
  EXPECT_CU(cu.cuStreamSynchronize(mine));
}

TEST_F(MemoryTest, AccessForAPeerIsEnough) {
  Start("gpus=2");
  const CUdeviceptr memory = Map(2 * kMiB, 0, {1});
  const CUstream stream = Stream(1);
  char* host = Host(1);
  On(1, [&] {
    EXPECT_CU(cu.cuMemsetD8Async(memory, 7, 1, stream));
    EXPECT_CU(cu.cuMemcpyDtoHAsync(host, memory, 1, stream));
    EXPECT_CU(cu.cuStreamSynchronize(stream));
  });
  EXPECT_EQ(*host, 7);
}

TEST_F(MemoryTest, AccessEndsAtTheIsland) {
  Start("gpus=4,peers=pairs");
  int can = -1;
  EXPECT_CU(cu.cuDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  EXPECT_CU(cu.cuDeviceCanAccessPeer(&can, 1, 2));
  EXPECT_EQ(can, 0);
  const CUdeviceptr memory = Map(2 * kMiB, 0, {0, 1});
  const CUmemAccessDesc access = Access(2);
  EXPECT_EQ(cu.cuMemSetAccess(memory, 2 * kMiB, &access, 1), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

TEST_F(MemoryTest, ACopyOfUnmappedMemoryIsRefused) {
  Start();
  const CUstream stream = Stream();
  const CUdeviceptr memory = Device(2 * kMiB);
  EXPECT_EQ(cu.cuMemsetD8Async(memory, 0, 2 * kMiB + 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyHtoDAsync(memory - 1, Host(1), 1, stream), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, ADoubleMappingShowsTheSameBytes) {
  Start();
  const CUmemAllocationProp prop = OnGpu(0);
  const CUmemAccessDesc access = Access(0);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  EXPECT_CU(cu.cuMemCreate(&handle, 4 * kMiB, &prop, 0));
  EXPECT_CU(cu.cuMemAddressReserve(&at, 8 * kMiB, 0, 0, 0));
  EXPECT_CU(cu.cuMemMap(at, 4 * kMiB, 0, handle, 0));
  EXPECT_EQ(cu.cuMemMap(at, 2 * kMiB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(cu.cuMemMap(at + 4 * kMiB, 2 * kMiB, 2 * kMiB, handle, 0));
  EXPECT_CU(cu.cuMemSetAccess(at, 6 * kMiB, &access, 1));
  const CUstream stream = Stream();
  char* host = Host(1);
  // Across the border of the two mappings.
  EXPECT_CU(cu.cuMemsetD8Async(at + 4 * kMiB - 50, 5, 100, stream));
  EXPECT_CU(cu.cuMemcpyDtoHAsync(host, at + 2 * kMiB + 49, 1, stream));
  EXPECT_CU(cu.cuStreamSynchronize(stream));
  EXPECT_EQ(*host, 5);
  EXPECT_CU(cu.cuMemUnmap(at, 6 * kMiB));
  EXPECT_EQ(cu.cuMemAddressFree(at, 6 * kMiB), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(cu.cuMemAddressFree(at, 8 * kMiB));
  EXPECT_CU(cu.cuMemRelease(handle));
}

TEST_F(MemoryTest, CopiesInTwoDimensionsKeepTheirPitches) {
  Start();
  const CUstream stream = Stream();
  const CUdeviceptr memory = Device(64 * 4);
  char* from = Host(4 * 10);
  char* to = Host(4 * 16);
  for (int i = 0; i < 40; ++i) from[i] = static_cast<char>(i);
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.srcPitch = 10;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory;
  copy.dstPitch = 64;
  copy.WidthInBytes = 8;
  copy.Height = 4;
  EXPECT_CU(cu.cuMemcpy2DAsync(&copy, stream));
  CUDA_MEMCPY2D back = copy;
  back.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  back.srcDevice = memory;
  back.srcPitch = 64;
  back.srcXInBytes = 1;
  back.srcY = 1;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = to;
  back.dstPitch = 16;
  back.WidthInBytes = 7;
  back.Height = 3;
  EXPECT_CU(cu.cuMemcpy2DAsync(&back, stream));
  EXPECT_CU(cu.cuStreamSynchronize(stream));
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 7; ++column) {
      EXPECT_EQ(to[row * 16 + column], (row + 1) * 10 + column + 1);
    }
  }
  copy.dstPitch = 7;
  EXPECT_EQ(cu.cuMemcpy2DAsync(&copy, stream), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryDeathTest, PageableMemoryIsRefusedByName) {
  Start();
  static char pageable[8];
  const CUstream stream = Stream();
  const CUdeviceptr memory = Device(8);
  EXPECT_DEATH(cu.cuMemcpyHtoDAsync(memory, pageable, 8, stream),
               "cuMemcpyHtoDAsync: pageable host memory");
  // Past the end of pinned memory, too.
  const char* host = Host(8);
  EXPECT_DEATH(cu.cuMemcpyHtoDAsync(memory, host + 1, 8, stream), "pageable host memory");
}

TEST_F(MemoryDeathTest, AnOverlappingCopyIsRefused) {
  Start();
  const CUstream stream = Stream();
  const CUdeviceptr memory = Device(16);
  EXPECT_DEATH(cu.cuMemcpyDtoDAsync(memory, memory + 7, 8, stream), "the source overlaps");
}

TEST_F(MemoryDeathTest, HeldMemoryFailsTheExit) {
  const auto run = [&] {
    Start();
    Stream();
    Event();
    Device(1);
    Host(1);
    Map(2 * kMiB, 1, {1});
    exit(0);
  };
  EXPECT_EXIT(
      run(), testing::ExitedWithCode(1),
      "2097152 bytes of GPU 0 by cuMemAlloc(.|\n)*2097152 bytes of GPU 1 mapped(.|\n)*"
      "1 pinned bytes(.|\n)*stream 0 of GPU 0(.|\n)*an event of GPU 0(.|\n)*the context of GPU 0");
}

TEST_F(MemoryDeathTest, AContextThatEndsWithStreamsIsReported) {
  const auto run = [&] {
    Start();
    Stream();
    cu.cuDevicePrimaryCtxRelease(0);
  };
  EXPECT_DEATH(run(), "GPU 0's context ends with 1 streams, events and pinned buffers");
}

}  // namespace
