// The driver's entry points for libraries, kernels and tensor maps.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/model/call.h"
#include "tests/model/kernels.h"
#include "tests/model/ptx/bulk/encode.h"

using namespace model;

namespace {

constexpr uint64_t kMaxSharedBytes = 227 << 10;  // of a CTA
constexpr int kSms = 132;

struct LaunchShape {
  uint64_t grid[3], block[3], cluster[3] = {1, 1, 1};
  uint64_t shared_bytes;
  bool has_cluster = false;  // the launch gives one

  // Without one of the launch, the kernel's own counts.
  void SetClusterOf(const ptx::Kernel& kernel) {
    if (has_cluster || kernel.cluster[0] == 0) return;
    for (int i = 0; i < 3; ++i) cluster[i] = kernel.cluster[i];
  }
  uint64_t ctas_of_cluster() const { return cluster[0] * cluster[1] * cluster[2]; }
  bool valid() const {
    const uint64_t threads = block[0] * block[1] * block[2];
    for (int i = 0; i < 3; ++i) {
      if (grid[i] == 0 || (i > 0 && grid[i] > 65535) || grid[i] % cluster[i] != 0) return false;
    }
    return threads > 0 && threads <= 1024;
  }
};

// A kernel that has a body for the host.
CUresult LaunchTwin(const Kernel& kernel, const LaunchShape& shape, Stream& stream,
                    void** arguments) {
  if (shape.shared_bytes > 48 << 10) return CUDA_ERROR_INVALID_VALUE;
  const Launch launch = kernel.launch(arguments);
  const int pieces =
      static_cast<int>(std::min<int64_t>(launch.elements, 1 + TheMachine().Random(4)));
  // Each part runs upwards or downwards.
  const bool down = TheMachine().Random(2);
  const auto run = [launch, pieces, down](int piece) {
    const int64_t begin = launch.elements * piece / pieces;
    const int64_t end = launch.elements * (piece + 1) / pieces;
    for (int64_t i = begin; i < end; ++i) launch.body(down ? begin + end - 1 - i : i);
  };
  return TheMachine().Submit(stream, {.name = kernel.name,
                                      .accesses = launch.accesses,
                                      .pieces = std::max(1, pieces),
                                      .run = run});
}

// A kernel that runs as PTX.
CUresult LaunchCompute(const ComputeKernel& kernel, const LaunchShape& shape, Stream& stream,
                       void** arguments) {
  if (shape.shared_bytes > kernel.most_dynamic_shared_bytes) return CUDA_ERROR_INVALID_VALUE;
  auto compute = std::make_shared<ComputeLaunch>();
  ptx::Launch& launch = compute->launch;
  launch.module = kernel.module;
  launch.kernel = kernel.kernel;
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = static_cast<uint32_t>(shape.grid[i]);
    launch.block[i] = static_cast<uint32_t>(shape.block[i]);
    launch.cluster[i] = static_cast<uint32_t>(shape.cluster[i]);
  }
  launch.dynamic_shared_bytes = static_cast<uint32_t>(shape.shared_bytes);
  launch.parameters = ptx::PackParameters(*kernel.kernel, arguments);
  launch.gpu = stream.gpu->index;
  return TheMachine().Submit(stream, {.name = kernel.kernel->name, .compute = std::move(compute)});
}

// Takes the dimensions and the cluster out of the driver's form. Returns an error for a cluster
// without CTAs.
CUresult ShapeOf(const Call& call, const CUlaunchConfig& config, LaunchShape* shape) {
  *shape = {.grid = {config.gridDimX, config.gridDimY, config.gridDimZ},
            .block = {config.blockDimX, config.blockDimY, config.blockDimZ},
            .shared_bytes = config.sharedMemBytes};
  for (unsigned int i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    call.RefuseUnless(attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, "an attribute");
    const auto& cluster = attribute.value.clusterDim;
    if (cluster.x == 0 || cluster.y == 0 || cluster.z == 0) return CUDA_ERROR_INVALID_VALUE;
    shape->cluster[0] = cluster.x, shape->cluster[1] = cluster.y, shape->cluster[2] = cluster.z;
    shape->has_cluster = true;
  }
  return CUDA_SUCCESS;
}

CUresult LaunchAny(const Call& call, const Gpu& gpu, CUfunction function, LaunchShape shape,
                   CUstream handle, void** arguments) {
  Stream* const stream = call.Find(handle);
  const ComputeKernel* const compute = TheMachine().compute.FromHandle(function);
  if (!stream || stream->gpu != &gpu || (!compute && !IsKernel(function))) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (compute) shape.SetClusterOf(*compute->kernel);
  if (!shape.valid()) return CUDA_ERROR_INVALID_VALUE;
  return compute
             ? LaunchCompute(*compute, shape, *stream, arguments)
             : LaunchTwin(*reinterpret_cast<const Kernel*>(function), shape, *stream, arguments);
}

}  // namespace

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit, void** values,
                           unsigned int jit_count, CUlibraryOption* options, void** option_values,
                           unsigned int option_count) {
  MODEL_CALL(cuLibraryLoadData);
  call.RefuseUnless(!jit_count && !option_count, "an option");
  call.Block();
  // A fat binary, the wrapper of one, or an ELF file.
  uint32_t magic = 0;
  std::memcpy(&magic, code, sizeof magic);
  if (magic != 0xba55ed50 && magic != 0x466243b1 && magic != 0x464c457f) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const uint64_t handle = TheMachine().NewHandle();
  TheMachine().libraries.insert(handle);
  TheMachine().compute.Load(handle, code);
  *library = reinterpret_cast<CUlibrary>(handle);
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
  MODEL_CALL(cuLibraryUnload);
  call.Block();
  const size_t erased = TheMachine().libraries.erase(reinterpret_cast<uint64_t>(library));
  TheMachine().compute.Unload(reinterpret_cast<uint64_t>(library));
  return erased ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  MODEL_CALL(cuLibraryGetKernel);
  if (!TheMachine().libraries.count(reinterpret_cast<uint64_t>(library))) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const void* found = FindKernel(name);
  if (!found) found = TheMachine().compute.Find(reinterpret_cast<uint64_t>(library), name);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  *kernel = reinterpret_cast<CUkernel>(const_cast<void*>(found));
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  MODEL_CONTEXT_CALL(cuKernelGetFunction);
  if (!IsKernel(kernel) && !TheMachine().compute.FromHandle(kernel))
    return CUDA_ERROR_INVALID_HANDLE;
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  MODEL_CONTEXT_CALL(cuFuncSetAttribute);
  call.RefuseUnless(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, "an attribute");
  ComputeKernel* const kernel = TheMachine().compute.FromHandle(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (value < 0 || value + uint64_t{kernel->kernel->static_shared_bytes} > kMaxSharedBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  kernel->most_dynamic_shared_bytes = value;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function,
                                      const CUlaunchConfig* config) {
  MODEL_CONTEXT_CALL(cuOccupancyMaxActiveClusters);
  const ComputeKernel* const kernel = TheMachine().compute.FromHandle(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  LaunchShape shape;
  if (const CUresult result = ShapeOf(call, *config, &shape); result != CUDA_SUCCESS) return result;
  if (!shape.has_cluster && kernel->kernel->cluster[0] == 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  shape.SetClusterOf(*kernel->kernel);
  if (!shape.valid() || shape.shared_bytes > kernel->most_dynamic_shared_bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // As if all SMs of a GPU were one cluster of hardware, and each held one CTA.
  *clusters = kSms / static_cast<int>(shape.ctas_of_cluster());
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  MODEL_CALL(cuTensorMapEncodeTiled);
  return ptx::EncodeTiled(map, type, rank, address, dims, strides, box, element_strides, interleave,
                          swizzle, l2, fill);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream handle,
                        void** arguments, void** extra) {
  MODEL_CONTEXT_CALL(cuLaunchKernel);
  call.RefuseUnless(!extra, "extra");
  const LaunchShape shape = {.grid = {grid_x, grid_y, grid_z},
                             .block = {block_x, block_y, block_z},
                             .shared_bytes = shared_bytes};
  return LaunchAny(call, gpu, function, shape, handle, arguments);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                          void** extra) {
  MODEL_CONTEXT_CALL(cuLaunchKernelEx);
  call.RefuseUnless(!extra, "extra");
  LaunchShape shape;
  if (const CUresult result = ShapeOf(call, *config, &shape); result != CUDA_SUCCESS) return result;
  return LaunchAny(call, gpu, function, shape, config->hStream, arguments);
}
