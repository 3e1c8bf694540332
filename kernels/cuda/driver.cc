#include "kernels/cuda/driver.h"

#include <dlfcn.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

absl::Status NoDriver(absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("no CUDA driver: ", why));
}

// Kernels of one major version of CUDA need a driver of that version or a later one.
constexpr int kLeastVersion = CUDA_VERSION / 1000 * 1000;

absl::Status Failed(const char* call, CUresult result) {
  if (result == CUDA_ERROR_STUB_LIBRARY) {
    return NoDriver(absl::StrFormat(
        "%s is the CUDA toolkit's stub (%s returned %d); remove its folder from LD_LIBRARY_PATH "
        "and install NVIDIA's driver",
        kLibrary, call, result));
  }
  if (result == CUDA_ERROR_NO_DEVICE)
    return NoDriver("it finds no GPU; give this daemon's container or user access to one");
  return NoDriver(absl::StrFormat("%s returned %d; see NVIDIA's driver messages in the kernel log",
                                  call, result));
}

absl::StatusOr<const Driver*> LoadDriver() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return NoDriver(
        absl::StrFormat("%s could not be opened (%s); install NVIDIA's driver of CUDA %s or newer",
                        kLibrary, dlerror(), CudaVersionText(kLeastVersion)));
  }
  const auto find =
      reinterpret_cast<decltype(&cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) {
    return NoDriver(absl::StrFormat(
        "%s has no cuGetProcAddress_v2, so it is older than CUDA 12.0; install a driver of CUDA "
        "%s or newer",
        kLibrary, CudaVersionText(kLeastVersion)));
  }
  auto driver = std::make_unique<Driver>();
  const auto version =
      reinterpret_cast<decltype(&cuDriverGetVersion)>(dlsym(library, "cuDriverGetVersion"));
  const CUresult asked = version == nullptr ? CUDA_ERROR_NOT_FOUND : version(&driver->version);
  if (asked != CUDA_SUCCESS) return Failed("cuDriverGetVersion", asked);
  if (driver->version < kLeastVersion) {
    return NoDriver(absl::StrFormat(
        "it is of CUDA %s, and this program was built for CUDA %s or newer; install a newer driver "
        "or build with an older toolkit",
        CudaVersionText(driver->version), CudaVersionText(kLeastVersion)));
  }
#define AGMM_FIND(name)                                                             \
  {                                                                                 \
    void* function = nullptr;                                                       \
    const CUresult found =                                                          \
        find(#name, &function, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, nullptr); \
    if (found != CUDA_SUCCESS || function == nullptr)                               \
      return Failed("cuGetProcAddress(\"" #name "\")",                              \
                    found == CUDA_SUCCESS ? CUDA_ERROR_NOT_FOUND : found);          \
    driver->name = reinterpret_cast<decltype(driver->name)>(function);              \
  }
  AGMM_DRIVER_FUNCTIONS(AGMM_FIND)
#undef AGMM_FIND
  if (const CUresult result = driver->cuInit(0); result != CUDA_SUCCESS)
    return Failed("cuInit", result);
  return driver.release();  // for as long as the process lives
}

}  // namespace

std::string Driver::Describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr ||
      cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr)
    return absl::StrFormat("CUDA error %d", result);
  return absl::StrCat(name, ": ", text);
}

absl::StatusOr<const Driver*> OpenDriver() {
  static const auto* const driver = new absl::StatusOr<const Driver*>(LoadDriver());
  return *driver;
}

std::string CudaVersionText(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

}  // namespace agmm
