// One test a process: the model is set up by an environment variable, once.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/driver_table.h"

// EXPECT_CU(cu.cuInit(0))
#define EXPECT_CU(call) EXPECT_EQ(call, CUDA_SUCCESS)
#define ASSERT_CU(call) ASSERT_EQ(call, CUDA_SUCCESS)

// A model with a context of each GPU; GPU 0's is current. It gives back all that its functions
// made.
class ModelTest : public testing::Test {
 protected:
  // With AGMM_MODEL=`options`.
  void Start(const std::string& options = "") {
    ASSERT_TRUE(contexts.empty());
    setenv("AGMM_MODEL", options.c_str(), 1);
    ASSERT_EQ(cu.Open(AGMM_MODEL_FOLDER "/libcuda.so.1"), "");
    ASSERT_CU(cu.cuInit(0));
    int count = 0;
    ASSERT_CU(cu.cuDeviceGetCount(&count));
    contexts.resize(count);
    for (int gpu = 0; gpu < count; ++gpu) {
      ASSERT_CU(cu.cuDevicePrimaryCtxRetain(&contexts[gpu], gpu));
    }
    Use(0);
  }

  void TearDown() override {
    for (auto& [stream, gpu] : streams) On(gpu, [&] { cu.cuStreamSynchronize(stream); });
    for (auto& [stream, gpu] : streams) On(gpu, [&] { cu.cuStreamDestroy(stream); });
    for (auto& [event, gpu] : events) On(gpu, [&] { cu.cuEventDestroy(event); });
    for (auto& [memory, gpu] : memories) On(gpu, [&] { cu.cuMemFree(memory); });
    for (void* memory : pinned) cu.cuMemFreeHost(memory);
    if (contexts.empty()) return;
    cu.cuCtxPopCurrent(nullptr);
    for (size_t gpu = 0; gpu < contexts.size(); ++gpu) cu.cuDevicePrimaryCtxRelease(gpu);
  }

  // Makes GPU `gpu`'s context the current one.
  void Use(int gpu) {
    if (current >= 0) cu.cuCtxPopCurrent(nullptr);
    ASSERT_CU(cu.cuCtxPushCurrent(contexts[gpu]));
    current = gpu;
  }

  template <typename Do>
  void On(int gpu, Do act) {
    const int before = current;
    Use(gpu);
    act();
    Use(before);
  }

  CUstream Stream(int gpu = 0) {
    CUstream stream = nullptr;
    On(gpu, [&] { EXPECT_CU(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0)); });
    streams.emplace_back(stream, gpu);
    return stream;
  }

  CUevent Event(int gpu = 0) {
    CUevent event = nullptr;
    On(gpu, [&] { EXPECT_CU(cu.cuEventCreate(&event, CU_EVENT_DEFAULT)); });
    events.emplace_back(event, gpu);
    return event;
  }

  CUdeviceptr Device(size_t bytes, int gpu = 0) {
    CUdeviceptr memory = 0;
    On(gpu, [&] { EXPECT_CU(cu.cuMemAlloc(&memory, bytes)); });
    memories.emplace_back(memory, gpu);
    return memory;
  }

  // Pinned, of zeros.
  template <typename T = char>
  T* Host(size_t count) {
    void* memory = nullptr;
    EXPECT_CU(cu.cuMemHostAlloc(&memory, count * sizeof(T), CU_MEMHOSTALLOC_PORTABLE));
    pinned.push_back(memory);
    return static_cast<T*>(memory);
  }

  static CUmemAllocationProp OnGpu(int gpu) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu};
    return prop;
  }

  // Memory of `gpu` mapped at a new address, for `users`.
  CUdeviceptr Map(size_t bytes, int gpu, const std::vector<int>& users) {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    const CUmemAllocationProp prop = OnGpu(gpu);
    EXPECT_CU(cu.cuMemCreate(&handle, bytes, &prop, 0));
    EXPECT_CU(cu.cuMemAddressReserve(&address, bytes, 0, 0, 0));
    EXPECT_CU(cu.cuMemMap(address, bytes, 0, handle, 0));
    EXPECT_CU(cu.cuMemRelease(handle));
    for (int user : users) {
      const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, user},
                                      CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      EXPECT_CU(cu.cuMemSetAccess(address, bytes, &access, 1));
    }
    return address;
  }

  void Unmap(CUdeviceptr address, size_t bytes) {
    EXPECT_CU(cu.cuMemUnmap(address, bytes));
    EXPECT_CU(cu.cuMemAddressFree(address, bytes));
  }

  static constexpr size_t kMiB = 1 << 20;

  DriverTable cu;
  std::vector<CUcontext> contexts;
  int current = -1;
  std::vector<std::pair<CUstream, int>> streams;
  std::vector<std::pair<CUevent, int>> events;
  std::vector<std::pair<CUdeviceptr, int>> memories;
  std::vector<void*> pinned;
};
