// The driver's entry points for memory.
#include <cuda.h>

#include "tests/model/call.h"

using namespace model;

namespace {

Memory& TheMemory() { return TheMachine().memory; }

// Returns the GPU of a handle's memory, or -1; all other values in `prop` are findings.
int GpuOf(const Call& call, const CUmemAllocationProp& prop) {
  call.RefuseUnless(prop.type == CU_MEM_ALLOCATION_TYPE_PINNED, "a type of allocation");
  call.RefuseUnless(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE, "a type of location");
  call.RefuseUnless(prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE, "a type of handle");
  call.RefuseUnless(!prop.allocFlags.compressionType && !prop.allocFlags.usage, "a flag");
  return IsGpu(prop.location.id) ? prop.location.id : -1;
}

}  // namespace

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  MODEL_CONTEXT_CALL(cuMemGetInfo);
  *total = TheOptions().memory;
  *free = *total - TheMemory().used_bytes(gpu.index);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  MODEL_CALL(cuMemGetAllocationGranularity);
  if (GpuOf(call, *prop) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags) {
  MODEL_CALL(cuMemAddressReserve);
  call.RefuseUnless(!wanted && !flags, "an address or flag");
  return TheMemory().Reserve(bytes, alignment, address);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  MODEL_CALL(cuMemAddressFree);
  return TheMemory().Free(address, bytes);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  MODEL_CALL(cuMemCreate);
  call.RefuseUnless(!flags, "a flag");
  const int index = GpuOf(call, *prop);
  if (index < 0) return CUDA_ERROR_INVALID_DEVICE;
  call.Block();
  const CUresult error = TheMachine().gpus[index].error;
  return error != CUDA_SUCCESS ? error : TheMemory().Create(index, bytes, handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  MODEL_CALL(cuMemRelease);
  call.Block();
  return TheMemory().Release(handle);
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  MODEL_CALL(cuMemMap);
  call.RefuseUnless(!flags, "a flag");
  call.Block();
  return TheMemory().Map(address, bytes, offset, handle);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  MODEL_CALL(cuMemUnmap);
  if (!TheMemory().IsMapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  TheMachine().CheckUnused("cuMemUnmap", address, bytes);
  call.Block();
  return TheMemory().Unmap(address, bytes);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* desc,
                        size_t count) {
  MODEL_CALL(cuMemSetAccess);
  call.Block();
  const int owner = TheMemory().Owner(address);
  for (size_t i = 0; i < count; ++i) {
    call.RefuseUnless(desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE, "a type of location");
    call.RefuseUnless(desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ, "memory that is only read");
    const int index = desc[i].location.id;
    if (!IsGpu(index)) return CUDA_ERROR_INVALID_DEVICE;
    if (owner >= 0 && !MayReach(index, owner)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    const CUresult set = TheMemory().SetAccess(address, bytes, index,
                                               desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (set != CUDA_SUCCESS) return set;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  MODEL_CONTEXT_CALL(cuMemAlloc);
  call.Block();
  return TheMemory().Allocate(gpu.index, bytes, address);
}

CUresult cuMemFree(CUdeviceptr address) {
  MODEL_RELEASE_CALL(cuMemFree);
  if (!address) return gpu.error;
  const int64_t bytes = TheMemory().AllocationBytes(address);
  if (!TheMemory().IsDevice(address) || !bytes) return CUDA_ERROR_INVALID_VALUE;
  TheMachine().CheckUnused("cuMemFree", address, bytes);
  call.Block();
  const CUresult freed = TheMemory().FreeAllocation(address);
  return freed != CUDA_SUCCESS ? freed : gpu.error;
}

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  MODEL_CONTEXT_CALL(cuMemHostAlloc);
  call.RefuseUnless(!(flags & ~CU_MEMHOSTALLOC_PORTABLE), "a flag");
  call.Block();
  return TheMemory().AllocateHost(gpu.index, bytes, address);
}

CUresult cuMemFreeHost(void* address) {
  MODEL_RELEASE_CALL(cuMemFreeHost);
  const auto begin = reinterpret_cast<uint64_t>(address);
  const int64_t bytes = TheMemory().AllocationBytes(begin);
  if (TheMemory().IsDevice(begin) || !bytes) return CUDA_ERROR_INVALID_VALUE;
  TheMachine().CheckUnused("cuMemFreeHost", begin, bytes);
  call.Block();
  const CUresult freed = TheMemory().FreeHost(address);
  return freed != CUDA_SUCCESS ? freed : gpu.error;
}
