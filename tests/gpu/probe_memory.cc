// cuda_probe: memory, copies, errors, and the first queries to a driver.
#include <algorithm>

#include "tests/gpu/probe.h"

namespace {

void UnknownFunction(Probe& probe) {
  void* function = &probe;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result =
      probe.cu.cuGetProcAddress("cuNoSuchFunction", &function, CUDA_VERSION, 0, &status);
  probe.Expect(
      !function && (result != CUDA_SUCCESS || status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
      "a function of no name was found");
  probe.text = "result " + std::to_string(result) + ", status " + std::to_string(status);
}

void Attributes(Probe& probe) {
  const auto attribute = [&](CUdevice_attribute which) { return probe.Attribute(which); };
  probe.Expect(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1,
               "no virtual memory management");
  probe.Expect(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 1, "no unified addresses");
  probe.text = "sm_" + std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) +
               std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)) + ", SMs " +
               std::to_string(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)) +
               ", copy engines " +
               std::to_string(attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT));
}

size_t Granularity(Probe& probe) {
  size_t granularity = 1;
  const CUmemAllocationProp prop = Probe::OnGpu(0);
  probe.Check("cuMemGetAllocationGranularity",
              probe.cu.cuMemGetAllocationGranularity(&granularity, &prop,
                                                     CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return granularity;
}

void GranularityIsSmall(Probe& probe) {
  const size_t granularity = Granularity(probe);
  probe.text = std::to_string(granularity) + " bytes";
  probe.Expect(granularity <= 2 * Probe::kMiB && (2 * Probe::kMiB) % granularity == 0,
               "granularity " + probe.text);
}

void FailedCreate(Probe& probe) {
  size_t before = 0, after = 0, total = 0;
  probe.Check("cuMemGetInfo", probe.cu.cuMemGetInfo(&before, &total));
  const size_t granularity = Granularity(probe);
  const CUmemAllocationProp prop = Probe::OnGpu(0);
  CUmemGenericAllocationHandle handle = 0;
  probe.Expect(probe.cu.cuMemCreate(&handle, (total / granularity + 1) * granularity, &prop, 0),
               CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate of more than there is");
  probe.Check("cuMemGetInfo", probe.cu.cuMemGetInfo(&after, &total));
  probe.Expect(before == after,
               "free bytes were " + std::to_string(before) + ", are " + std::to_string(after));
  probe.Map(2 * Probe::kMiB, 0, {0});
}

// Memory can be allocated again once the mapping of a released handle is removed.
void ReleaseThenUnmap(Probe& probe) {
  size_t before = 0, held = 0, after = 0, total = 0;
  probe.Check("cuMemGetInfo", probe.cu.cuMemGetInfo(&before, &total));
  const size_t bytes = 64 * Probe::kMiB;
  const CUdeviceptr address = probe.Map(bytes, 0, {0});  // which has released the handle
  probe.Check("cuMemGetInfo", probe.cu.cuMemGetInfo(&held, &total));
  probe.Check("cuMemUnmap", probe.cu.cuMemUnmap(address, bytes));
  probe.Check("cuMemGetInfo", probe.cu.cuMemGetInfo(&after, &total));
  probe.Check("cuMemAddressFree", probe.cu.cuMemAddressFree(address, bytes));
  probe.mapped.clear();
  probe.Expect(before - held >= bytes && after >= before,
               "free bytes were " + std::to_string(before) + ", " + std::to_string(held) +
                   " while mapped, and then " + std::to_string(after));
}

void NoAccess(Probe& probe) {
  const CUdeviceptr memory = probe.Map(2 * Probe::kMiB, 0, {});
  const CUstream stream = probe.Stream();
  unsigned long long value = 1;
  void* arguments[] = {const_cast<CUdeviceptr*>(&memory), &value};
  probe.Launch("probe_store", 1, 1, stream, arguments);
  const CUresult result = probe.cu.cuStreamSynchronize(stream);
  probe.text = "error " + std::to_string(result);
  probe.Expect(result != CUDA_SUCCESS, "a store without access succeeded");
}

void Sticky(Probe& probe) {
  const CUstream stream = probe.Stream();
  const CUevent event = probe.Event();
  CUdeviceptr nowhere = 0x1000;
  unsigned long long value = 1;
  void* arguments[] = {&nowhere, &value};
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(event, stream));
  probe.Check("cuEventSynchronize", probe.cu.cuEventSynchronize(event));
  probe.Launch("probe_store", 1, 1, stream, arguments);
  const CUresult wanted = CUDA_ERROR_ILLEGAL_ADDRESS;
  probe.Expect(probe.cu.cuStreamSynchronize(stream), wanted, "cuStreamSynchronize");
  CUdeviceptr memory = 0;
  probe.Expect(probe.cu.cuMemAlloc(&memory, 1), wanted, "cuMemAlloc");
  probe.Expect(probe.cu.cuEventQuery(event), wanted, "cuEventQuery");
  probe.Expect(probe.cu.cuEventRecord(event, stream), wanted, "cuEventRecord");
}

void OthersGoOn(Probe& probe) {
  if (!probe.two_gpus()) return probe.Skip("one GPU");
  const CUstream stream = probe.Stream(), other = probe.Stream(1);
  const CUdeviceptr memory = probe.Device(1, 1);
  char* host = probe.Host(1);
  CUdeviceptr nowhere = 0x1000;
  unsigned long long value = 1;
  void* arguments[] = {&nowhere, &value};
  probe.Launch("probe_store", 1, 1, stream, arguments);
  probe.Expect(probe.cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS,
               "cuStreamSynchronize");
  CUcontext dead = nullptr;
  probe.cu.cuCtxPopCurrent(&dead);
  probe.Check("cuCtxPushCurrent", probe.cu.cuCtxPushCurrent(probe.contexts[1]));
  probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(memory, 5, 1, other));
  probe.Check("cuMemcpyDtoHAsync", probe.cu.cuMemcpyDtoHAsync(host, memory, 1, other));
  probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(other));
  probe.Expect(*host == 5, "the other GPU did not work");
}

void Copies2D(Probe& probe) {
  // Rows of ragged lengths at pitches of 128 bytes, as heaps have them, and packed, as staging has
  // them.
  const CUstream stream = probe.Stream();
  const size_t rows = 37, pitch = 768;
  const CUdeviceptr here = probe.Device(rows * pitch), there = probe.Device(rows * pitch);
  for (size_t width : {1, 2, 127, 128, 130, 666}) {
    char* from = probe.Host(rows * width);
    char* to = probe.Host(rows * width);
    for (size_t i = 0; i < rows * width; ++i) from[i] = static_cast<char>(i * 31 + width);
    CUDA_MEMCPY2D copy = {};
    copy.WidthInBytes = width;
    copy.Height = rows;
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    copy.srcPitch = width;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = here;
    copy.dstPitch = pitch;
    probe.Check("cuMemcpy2DAsync to the device", probe.cu.cuMemcpy2DAsync(&copy, stream));
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = here;
    copy.srcPitch = pitch;
    copy.dstDevice = there;
    copy.dstPitch = pitch - 64;
    probe.Check("cuMemcpy2DAsync on the device", probe.cu.cuMemcpy2DAsync(&copy, stream));
    copy.srcDevice = there;
    copy.srcPitch = pitch - 64;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = to;
    copy.dstPitch = width;
    probe.Check("cuMemcpy2DAsync to the host", probe.cu.cuMemcpy2DAsync(&copy, stream));
    probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(stream));
    probe.Expect(std::equal(from, from + rows * width, to),
                 "rows of " + std::to_string(width) + " bytes came back changed");
  }
}

void PinnedForAll(Probe& probe) {
  if (!probe.two_gpus()) return probe.Skip("one GPU");
  char* host = probe.Host(2);
  const CUdeviceptr memory = probe.Device(1, 1);
  const CUstream stream = probe.Stream(1);
  host[0] = 9;
  probe.On(1, [&] {
    probe.Check("cuMemcpyHtoDAsync", probe.cu.cuMemcpyHtoDAsync(memory, host, 1, stream));
    probe.Check("cuMemcpyDtoHAsync", probe.cu.cuMemcpyDtoHAsync(host + 1, memory, 1, stream));
    probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(stream));
  });
  probe.Expect(host[1] == 9, "the byte did not come back");
}

void PeerWithoutAccess(Probe& probe) {
  if (!probe.two_gpus()) return probe.Skip("one GPU");
  const CUdeviceptr from = probe.Map(2 * Probe::kMiB, 0, {0}), to = probe.Device(1, 1);
  const CUstream stream = probe.Stream(1);
  probe.On(1, [&] {
    const CUresult submitted = probe.cu.cuMemcpyDtoDAsync(to, from, 1, stream);
    const CUresult ended = probe.cu.cuStreamSynchronize(stream);
    probe.text = "copy " + std::to_string(submitted) + ", then " + std::to_string(ended);
    probe.Expect(submitted != CUDA_SUCCESS || ended != CUDA_SUCCESS, "no error");
  });
}

void Pageable(Probe& probe) {
  if (probe.model) return probe.Skip("model: ends the test by name");
  static char pageable[64];
  const CUdeviceptr memory = probe.Device(64);
  const CUstream stream = probe.Stream();
  const CUresult result = probe.cu.cuMemcpyHtoDAsync(memory, pageable, 64, stream);
  probe.text = "error " + std::to_string(result);
}

}  // namespace

std::vector<ProbeCheck> MemoryChecks() {
  constexpr auto kMust = ProbeCheck::kMust;
  constexpr auto kMay = ProbeCheck::kMay;
  return {
      {kMust, "driver.unknown", "an unknown function is a null pointer", UnknownFunction},
      {kMust, "driver.attributes", "virtual memory and unified addresses", Attributes},
      {kMust, "memory.granularity", "2 MiB is a multiple of it", GranularityIsSmall},
      {kMust, "memory.failed_create", "OUT_OF_MEMORY takes nothing", FailedCreate},
      {kMust, "memory.release_then_unmap", "memory is back after the unmap", ReleaseThenUnmap},
      {kMust, "memory.no_access", "a store without access is an error", NoAccess},
      {kMust, "memory.pinned_for_all", "portable memory serves every GPU", PinnedForAll},
      {kMust, "error.sticky", "an illegal address stays in each later call", Sticky},
      {kMust, "error.others_go_on", "another GPU of the process still works", OthersGoOn},
      {kMust, "copy.2d", "ragged rows at our pitches", Copies2D},
      {kMay, "copy.peer_without_access", "a copy of a peer's memory is an error",
       PeerWithoutAccess},
      {kMay, "copy.pageable", "an async copy of pageable memory is refused", Pageable},
  };
}
