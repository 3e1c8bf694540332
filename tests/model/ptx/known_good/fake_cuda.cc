// libcuda.so.1 for host code of others, such as that of JAX's Mosaic GPU: launches are recorded,
// and run together on the model, a grid for each GPU. It has the driver calls that Mosaic's
// compiler and host code make, and functions for jax_kernels.py.
#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/model/ptx/bulk/encode.h"
#include "tests/model/ptx/known_good/run_settings.h"

namespace {

struct RecordedLaunch {
  std::string kernel;
  int32_t gpu = 0;
  uint32_t grid[3] = {}, block[3] = {}, cluster[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
  std::vector<std::byte> parameters;
};

struct Range {
  uint64_t address, bytes;
};

// All that the process has set up.
struct Setup {
  ptx::HostMemory memory;
  std::vector<Range> written;  // by the host
  std::vector<RecordedLaunch> launches;
  int gpu = 0;  // of the next launch
  uint64_t next_address = uint64_t{0x6000} << 32;
  std::string report;
};

Setup& TheSetup() {
  static auto& setup = *new Setup;
  return setup;
}

// The module whose kernels the host code launches: its PTX has the sizes of their parameters, which
// the driver's arguments do not say.
std::unique_ptr<ptx::Module>& RecordedModule() {
  static auto& module = *new std::unique_ptr<ptx::Module>;
  return module;
}

CUresult Record(CUfunction function, const uint32_t (&grid)[3], const uint32_t (&block)[3],
                const uint32_t (&cluster)[3], uint32_t shared_bytes, void** arguments) {
  Setup& setup = TheSetup();
  RecordedLaunch launch;
  launch.kernel = *reinterpret_cast<const std::string*>(function);
  launch.gpu = setup.gpu;
  std::copy_n(grid, 3, launch.grid);
  std::copy_n(block, 3, launch.block);
  std::copy_n(cluster, 3, launch.cluster);
  launch.shared_bytes = shared_bytes;
  const auto& module = RecordedModule();
  if (module == nullptr || !module->kernels.contains(launch.kernel)) return CUDA_ERROR_NOT_FOUND;
  launch.parameters = ptx::PackParameters(*module->kernels.at(launch.kernel), arguments);
  setup.launches.push_back(std::move(launch));
  return CUDA_SUCCESS;
}

template <typename T>
void Write(std::ofstream& file, const T& value) {
  file.write(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
T Read(std::ifstream& file) {
  T value{};
  file.read(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

// Runs all recorded launches. Returns the report, with a line for a stop.
std::string RunLaunches(const char* text, const ptx::RunOptions& options,
                        const ptx::Policy& policy) {
  Setup& setup = TheSetup();
  std::string report;
  try {
    const auto module = ptx::ParseModule(text);
    ptx::World world(setup.memory, options);
    world.races.policy = policy;
    world.races.enabled = ptx::ChecksRaces();
    for (const Range& range : setup.written) world.races.SetWritten(range.address, range.bytes);
    for (const RecordedLaunch& recorded : setup.launches) {
      ptx::Launch launch{.module = module.get()};
      const auto kernel = module->kernels.find(recorded.kernel);
      if (kernel == module->kernels.end()) throw ptx::Stop("no kernel " + recorded.kernel);
      launch.kernel = kernel->second.get();
      launch.gpu = recorded.gpu;
      std::copy_n(recorded.grid, 3, launch.grid);
      std::copy_n(recorded.block, 3, launch.block);
      std::copy_n(recorded.cluster, 3, launch.cluster);
      launch.dynamic_shared_bytes = recorded.shared_bytes;
      launch.parameters = recorded.parameters;
      world.Start(std::move(launch));
    }
    try {
      world.Run();
      world.CheckEnd(setup.memory);
    } catch (const ptx::Stop& stop) {
      report = "stop: " + std::string(stop.what()) + "\n";
    }
    report += ptx::ReportOf(world) + ptx::CountsOf(world, *module);
  } catch (const ptx::Stop& stop) {
    report = "stop: " + std::string(stop.what()) + "\n";
  }
  return report;
}

}  // namespace

extern "C" {

// ---- For jax_kernels.py

// Returns zeros in the memory of a GPU, at an address that is the same in every process that
// allocates alike, so that saved launches stay valid; null if the process uses that address.
void* PtxAllocate(int gpu, uint64_t bytes) {
  Setup& setup = TheSetup();
  void* const wanted = reinterpret_cast<void*>(setup.next_address);
  void* const at = mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (at != wanted) return nullptr;
  setup.next_address += (bytes + 0x1fff) / 0x1000 * 0x1000;
  setup.memory.Add(at, bytes, gpu);
  return at;
}
void PtxAddMulticast(uint64_t address, uint64_t bytes, const uint64_t* targets, int count) {
  TheSetup().memory.AddMulticast(address, bytes, {targets, targets + count});
}
void PtxSetWritten(const void* begin, uint64_t bytes) {
  TheSetup().written.push_back({reinterpret_cast<uint64_t>(begin), bytes});
}

// The next launches are of kernels with these parameters, and for this GPU. Returns false for a
// text that is not a module.
bool PtxRecord(const char* text, int gpu) {
  TheSetup().gpu = gpu;
  try {
    RecordedModule() = ptx::ParseModule(text);
  } catch (const ptx::Stop& stop) {
    std::fprintf(stderr, "%s\n", stop.what());
    return false;
  }
  return true;
}
int PtxCountLaunches() { return static_cast<int>(TheSetup().launches.size()); }

bool PtxSaveLaunches(const char* path) {
  std::ofstream file(path, std::ios::binary);
  for (const RecordedLaunch& launch : TheSetup().launches) {
    Write(file, static_cast<uint32_t>(launch.kernel.size()));
    file << launch.kernel;
    Write(file, launch.gpu);
    Write(file, launch.grid);
    Write(file, launch.block);
    Write(file, launch.cluster);
    Write(file, launch.shared_bytes);
    Write(file, static_cast<uint32_t>(launch.parameters.size()));
    file.write(reinterpret_cast<const char*>(launch.parameters.data()), launch.parameters.size());
  }
  return file.good();
}
// Adds the launches of a file.
bool PtxLoadLaunches(const char* path) {
  std::ifstream file(path, std::ios::binary);
  while (file.peek() != std::ifstream::traits_type::eof()) {
    RecordedLaunch launch;
    launch.kernel.resize(Read<uint32_t>(file));
    file.read(launch.kernel.data(), launch.kernel.size());
    launch.gpu = Read<int32_t>(file);
    for (auto* const three : {&launch.grid, &launch.block, &launch.cluster}) {
      for (uint32_t& value : *three) value = Read<uint32_t>(file);
    }
    launch.shared_bytes = Read<uint32_t>(file);
    launch.parameters.resize(Read<uint32_t>(file));
    file.read(reinterpret_cast<char*>(launch.parameters.data()), launch.parameters.size());
    if (!file) return false;
    TheSetup().launches.push_back(std::move(launch));
  }
  return !TheSetup().launches.empty();
}

// Runs the launches with the kernels of this PTX. The report has lines that begin with "stop: ",
// "finding (" and "instructions: "; it is valid until the next run.
const char* PtxRun(const char* text, uint64_t seed, const char* mode, int starved_gpu,
                   int starved_cta, int resident_ctas, bool store_completion_fences) {
  std::string& report = TheSetup().report;
  try {
    ptx::RunOptions options;
    options.seed = seed;
    options.mode = ptx::ModeNamed(mode);
    options.starved_gpu = starved_gpu;
    options.starved_cta = starved_cta;
    options.resident_ctas = resident_ctas;
    options.instruction_limit = ptx::InstructionLimit();
    ptx::Policy policy;
    policy.store_completion_fences = store_completion_fences;
    report = RunLaunches(text, options, policy);
  } catch (const ptx::Stop& stop) {
    report = "stop: " + std::string(stop.what()) + "\n";
  }
  return report.c_str();
}

// ---- The driver

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(&TheSetup());
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: *value = 1; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  *module = reinterpret_cast<CUmodule>(&TheSetup());
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(new std::string(name));  // for the life of the process
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "an error of the model";
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  return ptx::EncodeTiled(map, type, rank, address, dims, strides, box, element_strides, interleave,
                          swizzle, l2, fill);
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream, void** arguments, void**) {
  return Record(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, {1, 1, 1},
                shared_bytes, arguments);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                          void**) {
  uint32_t cluster[3] = {1, 1, 1};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& size = config->attrs[i].value.clusterDim;
    cluster[0] = size.x, cluster[1] = size.y, cluster[2] = size.z;
  }
  return Record(function, {config->gridDimX, config->gridDimY, config->gridDimZ},
                {config->blockDimX, config->blockDimY, config->blockDimZ}, cluster,
                config->sharedMemBytes, arguments);
}

}  // extern "C"
