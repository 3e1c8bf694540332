#include "tests/conformance/cuda_kind.h"

#include <cstdio>
#include <cstdlib>
#include <map>

#include "absl/strings/match.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/driver.h"

namespace agmm::test {
namespace {

std::unique_ptr<Device> MakeDevice(int gpu) {
  // Tests run in parallel, and other processes use the same GPUs.
  auto device = CreateCudaDevice({gpu, /*shared=*/true});
  if (device.ok()) return *std::move(device);
  std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
  std::abort();
}

// Keeps a GPU open from its first use to the end of the process, because opening one takes long.
// Does nothing on the model, which reports GPUs that are left open.
void KeepOpen(int gpu) {
  static auto* const open = new std::map<int, std::unique_ptr<Device>>;
  if (open->count(gpu) == 0) open->emplace(gpu, MakeDevice(gpu));
}

std::vector<DeviceKind> Skipped(absl::string_view why) {
  std::fprintf(stderr, "kind cuda is skipped: %s\n", std::string(why).c_str());
  return {};
}

}  // namespace

std::vector<DeviceKind> CudaKinds() {
  SetUpCudaEnvironment();
  // Without kernels for Hopper, whose PTX takes the model long. kernels_test.cc runs with them.
  setenv("AGMM_MODEL", "gpus=8,memory=8GiB,channels=32,arch=80", /*overwrite=*/0);
  const auto driver = OpenDriver();
  if (!driver.ok()) return Skipped(driver.status().message());
  int gpus = 0;
  CUdevice device = 0;
  char name[256] = {};
  if ((*driver)->cuDeviceGetCount(&gpus) != CUDA_SUCCESS || gpus == 0 ||
      (*driver)->cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      (*driver)->cuDeviceGetName(name, sizeof(name), device) != CUDA_SUCCESS)
    return Skipped("the driver has no GPU");
  int major = 0, minor = 0;
  (*driver)->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  (*driver)->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  const bool is_model = absl::StrContains(name, "MODEL");
  if (is_model && std::getenv("AGMM_TEST_GPU") != nullptr)
    return Skipped("AGMM_TEST_GPU is set, and the driver on the library path is a model");
  DeviceKind kind;
  kind.name = is_model ? "cuda_model" : "cuda";
  const bool keeps = kind.name == "cuda";
  kind.create = [gpus, keeps](Rank rank, int) {
    if (keeps) KeepOpen(rank % gpus);
    return MakeDevice(rank % gpus);
  };
  // The library uses other kernels for few rows.
  kind.rows_sum_alike = false;
  kind.product_kernels = major == 9 && minor == 0;
  kind.clock_error_ns = 1'000'000;
  return {kind};
}

}  // namespace agmm::test
