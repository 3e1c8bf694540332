// A CUDA runtime for host code of others, such as CUTLASS's: it knows the calls that launch a
// kernel, and runs the kernel's PTX on the model instead.
//
// run_settings.h has the variables of the environment. If the host code ends with status 0 and
// there are findings, the status becomes 2. One line for each launch, and one for each finding, go
// to stderr.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "tests/model/ptx/bulk/encode.h"
#include "tests/model/ptx/known_good/run_settings.h"
#include "tests/model/ptx/state/state.h"

#undef cudaGetDriverEntryPointByVersion

namespace {

// Any address of the process: the host code's buffers are not registered.
class WholeProcess : public ptx::GlobalMemory {
 public:
  std::byte* Find(uint64_t address, uint64_t /*bytes*/, int /*gpu*/) override {
    return address < 4096 ? nullptr : reinterpret_cast<std::byte*>(address);
  }
};

std::map<const void*, std::string>& KernelNames() {
  static auto& names = *new std::map<const void*, std::string>;
  return names;
}

ptx::Module& LoadedModule() {
  static ptx::Module& module = *ptx::ModuleFromFile(ptx::Setting("PTX_FILE", "")).release();
  return module;
}

void ReportFindingsAtExit() {
  static bool once = false;
  if (std::exchange(once, true)) return;
  on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        if (status == 0) _exit(2);
      },
      nullptr);
}

cudaError_t Launch(const std::string& name, dim3 grid, dim3 block, dim3 cluster,
                   size_t shared_bytes, void** arguments) {
  try {
    ptx::Module& module = LoadedModule();
    WholeProcess memory;
    ptx::World world(memory, ptx::OptionsFromEnvironment());
    world.races.enabled = ptx::ChecksRaces();
    world.races.SetWritten(4096, uint64_t{1} << 62);
    const auto kernel = module.kernels.find(name);
    if (kernel == module.kernels.end()) throw ptx::Stop("no kernel " + name);
    world.Start({.module = &module,
                 .kernel = kernel->second.get(),
                 .grid = {grid.x, grid.y, grid.z},
                 .block = {block.x, block.y, block.z},
                 .cluster = {cluster.x, cluster.y, cluster.z},
                 .dynamic_shared_bytes = static_cast<uint32_t>(shared_bytes),
                 .parameters = ptx::PackParameters(*kernel->second, arguments)});
    world.Run();
    std::fprintf(stderr, "launch: grid %u,%u,%u cluster %u,%u,%u, %.1f MFLOP of wgmma\n%s", grid.x,
                 grid.y, grid.z, cluster.x, cluster.y, cluster.z,
                 static_cast<double>(world.counts.wgmma_flops) / 1e6, ptx::ReportOf(world).c_str());
    std::fprintf(stderr, "%s", ptx::CountsOf(world, module).c_str());
    if (!world.races.findings().empty()) ReportFindingsAtExit();
  } catch (const ptx::Stop& stop) {
    std::fprintf(stderr, "stop: %s\n", stop.what());
    std::exit(3);
  }
  return cudaSuccess;
}

dim3 pushed_grid, pushed_block;
size_t pushed_shared;

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  KernelNames()[host] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void*) {
  pushed_grid = grid;
  pushed_block = block;
  pushed_shared = shared_bytes;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  *grid = pushed_grid;
  *block = pushed_block;
  *shared_bytes = pushed_shared;
  *static_cast<void**>(stream) = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(ptx::EncodeTiled) : nullptr;
  if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the model"; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 132;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 66;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  std::memset(at, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t) {
  return Launch(KernelNames()[function], grid, block, dim3(1, 1, 1), shared_bytes, arguments);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t) {
  return Launch(KernelNames()[(const void*)kernel], grid, block, dim3(1, 1, 1), shared_bytes,
                arguments);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  dim3 cluster(1, 1, 1);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id != cudaLaunchAttributeClusterDimension) continue;
    const auto& dimensions = config->attrs[i].val.clusterDim;
    cluster = dim3(dimensions.x, dimensions.y, dimensions.z);
  }
  return Launch(KernelNames()[function], config->gridDim, config->blockDim, cluster,
                config->dynamicSmemBytes, arguments);
}

}  // extern "C"
