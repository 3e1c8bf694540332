// Faults that AGMM_MODEL sets, and misuse that the model refuses by name.
#include "tests/model/model_fixture.h"

namespace {

class FaultTest : public ModelTest {
 protected:
  // GPU 1 is lost with the work before its event, for which the returned stream of GPU 0 waits.
  CUstream StreamThatWaitsForTheLostGpu() {
    const CUstream lost = Stream(1), stream = Stream(0);
    const CUevent event = Event(1);
    On(1, [&] {
      cu.cuMemsetD8Async(Device(1, 1), 1, 1, lost);
      cu.cuEventRecord(event, lost);
    });
    cu.cuStreamWaitEvent(stream, event, 0);
    return stream;
  }
};
using FaultDeathTest = FaultTest;

TEST_F(FaultTest, TheNthCallFails) {
  Start("fail=cuMemCreate@2,fail=cuStreamCreateWithPriority@1,fail=cuMemHostAlloc@1:2");
  const CUmemAllocationProp prop = OnGpu(0);
  CUmemGenericAllocationHandle handle[3] = {};
  EXPECT_CU(cu.cuMemCreate(&handle[0], 2 * kMiB, &prop, 0));
  EXPECT_EQ(cu.cuMemCreate(&handle[1], 2 * kMiB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CU(cu.cuMemCreate(&handle[2], 2 * kMiB, &prop, 0));
  EXPECT_CU(cu.cuMemRelease(handle[0]));
  EXPECT_CU(cu.cuMemRelease(handle[2]));
  CUstream stream = nullptr;
  EXPECT_EQ(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_ERROR_UNKNOWN);
  void* host = nullptr;
  EXPECT_EQ(cu.cuMemHostAlloc(&host, 1, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(FaultTest, ALostGpuDoesNotAffectOthers) {
  Start("gpus=3,lose=1@2");
  const CUdeviceptr lost = Device(8, 1), memory = Device(8, 0);
  const CUstream on_lost = Stream(1), stream = Stream(0), third = Stream(2);
  const CUevent event = Event(1), early = Event(1);
  On(1, [&] {
    EXPECT_CU(cu.cuMemsetD8Async(lost, 1, 8, on_lost));
    EXPECT_CU(cu.cuEventRecord(early, on_lost));
    EXPECT_CU(cu.cuEventSynchronize(early));
    EXPECT_CU(cu.cuMemsetD8Async(lost, 1, 8, on_lost));
    EXPECT_EQ(cu.cuEventRecord(event, on_lost), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(cu.cuStreamSynchronize(on_lost), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(cu.cuEventQuery(early), CUDA_ERROR_LAUNCH_FAILED);
  });
  // From another context, too.
  EXPECT_EQ(cu.cuEventQuery(early), CUDA_ERROR_LAUNCH_FAILED);
  CUcontext again = nullptr;
  EXPECT_EQ(cu.cuDevicePrimaryCtxRetain(&again, 1), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 8, stream));
  EXPECT_CU(cu.cuStreamSynchronize(stream));
  On(2, [&] { EXPECT_CU(cu.cuStreamSynchronize(third)); });
}

TEST_F(FaultTest, WorkBehindTheLossNeverRuns) {
  Start("gpus=2,order=lazy,lose=1@2");
  const CUdeviceptr memory = Device(1, 1);
  char* host = Host(1);
  const CUstream stream = Stream(1);
  On(1, [&] {
    EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 1, stream));
    EXPECT_CU(cu.cuMemcpyDtoHAsync(host, memory, 1, stream));
    EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
  });
  EXPECT_EQ(*host, 0);
}

TEST_F(FaultTest, AWaitForALostGpusEventIsReleased) {
  Start("gpus=2,order=lazy,lose=1@1");
  const CUstream lost = Stream(1), stream = Stream(0);
  const CUevent event = Event(1);
  On(1, [&] {
    EXPECT_CU(cu.cuMemsetD8Async(Device(1, 1), 1, 1, lost));
    EXPECT_CU(cu.cuEventRecord(event, lost));
  });
  EXPECT_CU(cu.cuStreamWaitEvent(stream, event, 0));
  EXPECT_CU(cu.cuStreamSynchronize(stream));
}

TEST_F(FaultDeathTest, ADeadlockOfTheHostIsFoundAndNamed) {
  const auto run = [&] {
    Start("gpus=2,order=lazy,lose=1@1,orphans=stuck");
    cu.cuStreamSynchronize(StreamThatWaitsForTheLostGpu());
  };
  EXPECT_DEATH(
      run(),
      "deadlock: nothing that was submitted can run; cuStreamSynchronize is blocked; "
      "GPU 0 channel 0 .1 operations. begins with cuStreamWaitEvent #3 on stream 1 of GPU 0; "
      "GPU 1 channel 0 .2 operations. begins with cuMemsetD8Async #1 .*lost with error 719");
}

TEST_F(FaultTest, AWaitForALostGpusEventIsRefusedWithItsError) {
  Start("gpus=2,lose=1@1,orphans=refused");
  const CUstream lost = Stream(1), stream = Stream(0);
  const CUevent event = Event(1);
  On(1, [&] {
    EXPECT_CU(cu.cuEventRecord(event, lost));
    EXPECT_CU(cu.cuMemsetD8Async(Device(1, 1), 1, 1, lost));
  });
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, 0), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_CU(cu.cuStreamSynchronize(stream));
}

TEST_F(FaultDeathTest, WorkThatHangsIsNeitherDoneNorAnError) {
  const auto run = [&] {
    Start("gpus=2,hang=1@2");
    const CUdeviceptr memory = Device(2, 1);
    const CUstream hangs = Stream(1), free = Stream(1), stream = Stream(0);
    const CUevent event = Event(1);
    On(1, [&] {
      EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 1, hangs));
      EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 1, hangs));
      EXPECT_CU(cu.cuEventRecord(event, hangs));
      EXPECT_CU(cu.cuMemsetD8Async(memory + 1, 1, 1, free));
      EXPECT_CU(cu.cuStreamSynchronize(free));
      EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
    });
    EXPECT_CU(cu.cuStreamWaitEvent(stream, event, 0));
    EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    if (HasFailure()) return;
    On(1, [&] { cu.cuMemFree(memory); });
  };
  EXPECT_DEATH(run(), "cuMemFree of .* while cuMemsetD8Async #2 .* may still use it");
}

TEST_F(FaultDeathTest, ADeadlockBehindAFullChannelIsFound) {
  const auto run = [&] {
    Start("gpus=2,order=lazy,depth=2,lose=1@1,orphans=stuck");
    const CUstream stream = StreamThatWaitsForTheLostGpu();
    cu.cuMemsetD8Async(Device(1), 1, 1, stream);
    cu.cuMemsetD8Async(Device(1), 1, 1, stream);
  };
  EXPECT_DEATH(run(), "deadlock.*; cuMemsetD8Async, whose channel is full, is blocked");
}

TEST_F(FaultTest, AStubIsReported) {
  setenv("AGMM_MODEL", "driver=stub", 1);
  EXPECT_EQ(cu.Open(AGMM_MODEL_FOLDER "/libcuda.so.1"), "cuInit: error 34, status 0");
}

TEST_F(FaultTest, AnOldDriverRefusesANewerVersion) {
  setenv("AGMM_MODEL", "driver=12040", 1);
  EXPECT_EQ(cu.Open(AGMM_MODEL_FOLDER "/libcuda.so.1", 13000), "cuInit: error 1, status 0");
  ASSERT_EQ(cu.Open(AGMM_MODEL_FOLDER "/libcuda.so.1", 12040), "");
  int version = 0;
  EXPECT_CU(cu.cuDriverGetVersion(&version));
  EXPECT_EQ(version, 12040);
}

TEST_F(FaultTest, CallsBeforeInitFail) {
  ASSERT_EQ(cu.Open(AGMM_MODEL_FOLDER "/libcuda.so.1"), "");
  int count = 0;
  EXPECT_EQ(cu.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

TEST_F(FaultTest, AnUnknownFunctionIsNotFound) {
  Start();
  void* function = this;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_CU(cu.cuGetProcAddress("cuStreamWaitValue64", &function, 13000, 0, &status));
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(cu.cuGetProcAddress("cuGraphLaunch", &function, 13000, 0, nullptr),
            CUDA_ERROR_NOT_FOUND);
}

TEST_F(FaultTest, DevicesAreNamedModel) {
  Start();
  char name[64] = {}, bus[64] = {};
  EXPECT_CU(cu.cuDeviceGetName(name, sizeof name, 0));
  EXPECT_NE(std::string(name).find("MODEL"), std::string::npos);
  EXPECT_CU(cu.cuDeviceGetPCIBusId(bus, sizeof bus, 1));
  EXPECT_STREQ(bus, "0000:11:00.0");
  CUuuid first, second;
  EXPECT_CU(cu.cuDeviceGetUuid(&first, 0));
  EXPECT_CU(cu.cuDeviceGetUuid(&second, 1));
  EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
  const char* text = nullptr;
  EXPECT_CU(cu.cuGetErrorName(CUDA_ERROR_LAUNCH_FAILED, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_LAUNCH_FAILED");
}

TEST_F(FaultDeathTest, AnUnknownCallEndsTheTestByName) {
  Start();
  CUevent event = nullptr;
  int value = 0;
  EXPECT_DEATH(cu.cuMemsetD8Async(Device(1), 1, 1, nullptr), "cuMemsetD8Async: the null stream");
  EXPECT_DEATH(cu.cuStreamSynchronize(CU_STREAM_PER_THREAD),
               "cuStreamSynchronize: the null stream");
  EXPECT_DEATH(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS), "cuEventCreate: a flag");
  EXPECT_DEATH(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 0),
               "cuDeviceGetAttribute: attribute 38 is not in the model");
  cu.cuCtxPopCurrent(nullptr);
  EXPECT_DEATH(cu.cuEventCreate(&event, 0), "cuEventCreate: this thread has no current context");
  cu.cuCtxPushCurrent(contexts[0]);
}

TEST_F(FaultDeathTest, AWrongOptionIsNamed) {
  EXPECT_DEATH(Start("gpus=17"), "gpus=17 is outside .1, 16.");
  EXPECT_DEATH(Start("colour=red"), "\"colour\" is unknown");
  EXPECT_DEATH(Start("order=fast"), "order=fast is not one of eager, lazy, random, oldest, newest");
  EXPECT_DEATH(Start("memory=12"), "memory=12 wants KiB, MiB or GiB");
}

using KernelTest = ModelTest;
using KernelDeathTest = ModelTest;

// A library with the head of a fat binary, which is all that the model reads.
constexpr uint32_t kImage[4] = {0xba55ed50};

TEST_F(KernelTest, ANameRunsItsBodyOnTheHost) {
  Start("order=random");
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cu.cuLibraryLoadData(&library, "nothing", nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_INVALID_IMAGE);
  ASSERT_CU(cu.cuLibraryLoadData(&library, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0));
  EXPECT_EQ(cu.cuLibraryGetKernel(&kernel, library, "unknown"), CUDA_ERROR_NOT_FOUND);
  ASSERT_CU(cu.cuLibraryGetKernel(&kernel, library, "model_add_floats"));
  ASSERT_CU(cu.cuKernelGetFunction(&function, kernel));

  constexpr int64_t kCount = 1000;
  float* host = Host<float>(kCount);
  for (int64_t i = 0; i < kCount; ++i) host[i] = static_cast<float>(i);
  CUdeviceptr into = Device(kCount * 4), from = Device(kCount * 4);
  int64_t count = kCount;
  void* arguments[] = {&into, &from, &count};
  const CUstream stream = Stream();
  EXPECT_CU(cu.cuMemcpyHtoDAsync(into, host, kCount * 4, stream));
  EXPECT_CU(cu.cuMemcpyDtoDAsync(from, into, kCount * 4, stream));
  EXPECT_CU(cu.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr));
  EXPECT_EQ(cu.cuLaunchKernel(function, 4, 1, 1, 2048, 1, 1, 0, stream, arguments, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, Stream(1), arguments, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_CU(cu.cuMemcpyDtoHAsync(host, into, kCount * 4, stream));
  EXPECT_CU(cu.cuStreamSynchronize(stream));
  for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ(host[i], 2 * i);
  EXPECT_CU(cu.cuLibraryUnload(library));
}

TEST_F(KernelDeathTest, AKernelsBytesAreInTheRaceCheck) {
  const auto run = [&] {
    Start();
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    cu.cuLibraryLoadData(&library, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0);
    cu.cuLibraryGetKernel(&kernel, library, "model_add_floats");
    CUdeviceptr into = Device(400), from = Device(400);
    int64_t count = 100;
    void* arguments[] = {&into, &from, &count};
    cu.cuMemsetD8Async(from + 399, 0, 1, Stream());
    cu.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 128, 1, 1, 0, Stream(),
                      arguments, nullptr);
  };
  EXPECT_DEATH(
      run(),
      "race: model_add_floats #2 on stream 1 of GPU 0 reads .*cuMemsetD8Async #1 on stream 0");
}

TEST_F(KernelTest, AnAddressWithoutAMappingIsSticky) {
  Start();
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  ASSERT_CU(cu.cuLibraryLoadData(&library, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0));
  ASSERT_CU(cu.cuLibraryGetKernel(&kernel, library, "model_add_floats"));
  CUdeviceptr into = Device(4), from = 0;
  int64_t count = 1;
  void* arguments[] = {&into, &from, &count};
  const CUstream stream = Stream();
  EXPECT_CU(cu.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, stream,
                              arguments, nullptr));
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_CU(cu.cuLibraryUnload(library));
}

}  // namespace
