// Contexts, streams, events and memory that tests of the driver create and release.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/driver_table.h"

// One thread's view of the GPUs. A call that fails is handed to Failed.
class GpuScratch {
 public:
  GpuScratch() = default;
  virtual ~GpuScratch() = default;

  virtual void Failed(const std::string& call, CUresult result) = 0;
  void Check(const std::string& call, CUresult result) {
    if (result != CUDA_SUCCESS) Failed(call, result);
  }

  // Opens the driver and makes contexts of the first `most` GPUs; GPU 0's is current.
  std::string Open(const std::string& library, int most) {
    if (std::string error = cu.Open(library); !error.empty()) return error;
    int count = 0;
    CUresult result = cu.cuInit(0);
    if (result == CUDA_SUCCESS) result = cu.cuDeviceGetCount(&count);
    for (int gpu = 0; result == CUDA_SUCCESS && gpu < std::min(count, most); ++gpu) {
      result = cu.cuDevicePrimaryCtxRetain(&contexts.emplace_back(), gpu);
    }
    if (result != CUDA_SUCCESS) return "no GPU: error " + std::to_string(result);
    if (contexts.empty()) return "no GPU";
    Use(0);
    return "";
  }

  // Waits for all work and releases everything; errors have been reported before.
  void Close() {
    for (auto& [stream, gpu] : streams) On(gpu, [&] { cu.cuStreamSynchronize(stream); });
    for (auto& [stream, gpu] : streams) On(gpu, [&] { cu.cuStreamDestroy(stream); });
    for (auto& [event, gpu] : events) On(gpu, [&] { cu.cuEventDestroy(event); });
    for (auto& [memory, gpu] : memories) On(gpu, [&] { cu.cuMemFree(memory); });
    for (void* memory : pinned) cu.cuMemFreeHost(memory);
    for (const auto& [address, bytes] : mapped) {
      cu.cuMemUnmap(address, bytes);
      cu.cuMemAddressFree(address, bytes);
    }
    if (contexts.empty()) return;
    cu.cuCtxPopCurrent(nullptr);
    for (size_t gpu = 0; gpu < contexts.size(); ++gpu) {
      cu.cuDevicePrimaryCtxRelease(static_cast<int>(gpu));
    }
  }

  // Makes GPU `gpu`'s context the current one.
  void Use(int gpu) {
    if (current >= 0) cu.cuCtxPopCurrent(nullptr);
    Check("cuCtxPushCurrent", cu.cuCtxPushCurrent(contexts[gpu]));
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
    On(gpu, [&] {
      Check("cuStreamCreateWithPriority",
            cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    });
    streams.emplace_back(stream, gpu);
    return stream;
  }

  CUevent Event(int gpu = 0, unsigned flags = CU_EVENT_DEFAULT) {
    CUevent event = nullptr;
    On(gpu, [&] { Check("cuEventCreate", cu.cuEventCreate(&event, flags)); });
    events.emplace_back(event, gpu);
    return event;
  }

  CUdeviceptr Device(size_t bytes, int gpu = 0) {
    CUdeviceptr memory = 0;
    On(gpu, [&] { Check("cuMemAlloc", cu.cuMemAlloc(&memory, bytes)); });
    memories.emplace_back(memory, gpu);
    return memory;
  }

  template <typename T = char>
  T* Host(size_t count) {
    void* memory = nullptr;
    Check("cuMemHostAlloc",
          cu.cuMemHostAlloc(&memory, count * sizeof(T), CU_MEMHOSTALLOC_PORTABLE));
    pinned.push_back(memory);
    return static_cast<T*>(memory);
  }

  static CUmemAllocationProp OnGpu(int gpu) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = gpu;
    return prop;
  }

  // Memory of `gpu` mapped at a new address, for `users`. Unmapped by Close.
  CUdeviceptr Map(size_t bytes, int gpu, const std::vector<int>& users) {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    const CUmemAllocationProp prop = OnGpu(gpu);
    Check("cuMemCreate", cu.cuMemCreate(&handle, bytes, &prop, 0));
    Check("cuMemAddressReserve", cu.cuMemAddressReserve(&address, bytes, 0, 0, 0));
    Check("cuMemMap", cu.cuMemMap(address, bytes, 0, handle, 0));
    Check("cuMemRelease", cu.cuMemRelease(handle));
    for (int user : users) {
      const CUmemAccessDesc access = Access(user);
      Check("cuMemSetAccess", cu.cuMemSetAccess(address, bytes, &access, 1));
    }
    mapped.emplace_back(address, bytes);
    return address;
  }

  static CUmemAccessDesc Access(int gpu) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = gpu;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
  }

  static constexpr size_t kMiB = 1 << 20;

  DriverTable cu;
  std::vector<CUcontext> contexts;
  int current = -1;
  std::vector<std::pair<CUstream, int>> streams;
  std::vector<std::pair<CUevent, int>> events;
  std::vector<std::pair<CUdeviceptr, int>> memories;
  std::vector<std::pair<CUdeviceptr, size_t>> mapped;
  std::vector<void*> pinned;
};
