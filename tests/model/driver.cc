// The driver's entry points: version, errors, devices and contexts.
#include <cuda.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/model/call.h"
#include "tests/model/functions.h"

namespace model {

std::vector<Gpu*>& CurrentContexts() {
  thread_local std::vector<Gpu*> contexts;
  return contexts;
}

Call::Call(const char* function) : name(function), lock_(TheMachine().mutex) {
  Machine& machine = TheMachine();
  while (machine.locked_by != std::thread::id() &&
         machine.locked_by != std::this_thread::get_id()) {
    lock_.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    lock_.lock();
  }
  const int64_t count = ++machine.calls[name];
  const bool informs =
      name == "cuDriverGetVersion" || name == "cuGetProcAddress" || name.starts_with("cuGetError");
  if (TheOptions().driver == 0) {
    result = CUDA_ERROR_STUB_LIBRARY;
  } else if (!machine.initialized && !informs && name != "cuInit") {
    result = CUDA_ERROR_NOT_INITIALIZED;
  }
  for (const Options::Failure& failure : TheOptions().failures) {
    if (failure.name != name || failure.call != count) continue;
    const bool allocates = name == "cuMemCreate" || name == "cuMemAlloc" ||
                           name == "cuMemHostAlloc" || name == "cuMemAddressReserve";
    result = failure.code ? static_cast<CUresult>(failure.code)
             : allocates  ? CUDA_ERROR_OUT_OF_MEMORY
                          : CUDA_ERROR_UNKNOWN;
  }
}

Gpu& Call::Context() const {
  if (CurrentContexts().empty()) {
    Fail(name + ": this thread has no current context; push one first");
  }
  return *CurrentContexts().back();
}

Stream* Call::Find(CUstream handle) const {
  if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    Refuse("the null stream");
  }
  auto& streams = TheMachine().streams;
  const auto found = streams.find(reinterpret_cast<uint64_t>(handle));
  return found == streams.end() ? nullptr : &found->second;
}

Event* Call::Find(CUevent handle) const {
  auto& events = TheMachine().events;
  const auto found = events.find(reinterpret_cast<uint64_t>(handle));
  return found == events.end() ? nullptr : &found->second;
}

void Call::Block() const {
  Machine& machine = TheMachine();
  if (TheOptions().calls == Calls::kFree) return;
  if (TheOptions().calls == Calls::kLock) machine.locked_by = std::this_thread::get_id();
  machine.WaitForAll(name + ", which waits for all work,");
  machine.locked_by = {};
}

void Call::Refuse(const std::string& what) const {
  Fail(name + ": " + what + " is not in the model");
}

void Call::RefuseUnless(bool known, const std::string& what) const {
  if (!known) Refuse(what);
}

namespace {

struct ErrorText {
  CUresult code;
  const char *name, *text;
};
#define MODEL_ERROR(code, text) \
  ErrorText { code, #code, text }
constexpr ErrorText kErrors[] = {
    MODEL_ERROR(CUDA_SUCCESS, "no error"),
    MODEL_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    MODEL_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    MODEL_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    MODEL_ERROR(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    MODEL_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "device busy or unavailable"),
    MODEL_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    MODEL_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    MODEL_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    MODEL_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    MODEL_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for the device"),
    MODEL_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    MODEL_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported"),
    MODEL_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    MODEL_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    MODEL_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    MODEL_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    MODEL_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    MODEL_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    MODEL_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    MODEL_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "driver and library versions differ"),
    MODEL_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const ErrorText* FindError(CUresult code) {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

bool IsPeer(CUdevice a, CUdevice b) {
  switch (TheOptions().peers) {
    case Peers::kAll: return a != b;
    case Peers::kPairs: return a != b && a / 2 == b / 2;
    case Peers::kNone: return false;
  }
  return false;
}

}  // namespace

bool IsGpu(CUdevice device) { return device >= 0 && device < TheOptions().gpus; }

bool MayReach(int gpu, int memory_of) { return gpu == memory_of || IsPeer(gpu, memory_of); }

}  // namespace model

using namespace model;

CUresult cuInit(unsigned int flags) {
  MODEL_CALL(cuInit);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  TheMachine().initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  MODEL_CALL(cuDriverGetVersion);
  *version = TheOptions().driver;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char** text) {
  const ErrorText* error = FindError(code);
  *text = error ? error->name : nullptr;
  return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  const ErrorText* error = FindError(code);
  *text = error ? error->text : nullptr;
  return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status) {
  MODEL_CALL(cuGetProcAddress);
  call.RefuseUnless(flags == CU_GET_PROC_ADDRESS_DEFAULT, "a flag");
  if (version > TheOptions().driver) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
#define MODEL_FIND(name) \
  if (!std::strcmp(symbol, #name)) *function = reinterpret_cast<void*>(&name);
  MODEL_FUNCTIONS(MODEL_FIND)
  // As in cuda.h: success without a function, and the reason.
  if (status) {
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
  }
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuDeviceGetCount(int* count) {
  MODEL_CALL(cuDeviceGetCount);
  *count = TheOptions().gpus;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  MODEL_CALL(cuDeviceGet);
  if (!IsGpu(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  MODEL_CALL(cuDeviceGetName);
  if (!IsGpu(device) || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::strncpy(name, "MODEL, no hardware", length);
  name[length - 1] = '\0';
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  MODEL_CALL(cuDeviceGetUuid);
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, "agmm model      ", sizeof uuid->bytes);
  const uint32_t machine = TheOptions().machine;
  std::memcpy(&uuid->bytes[11], &machine, sizeof machine);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  MODEL_CALL(cuDeviceTotalMem);
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = TheOptions().memory;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  MODEL_CALL(cuDeviceGetAttribute);
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = TheOptions().arch / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = TheOptions().arch % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = CU_COMPUTEMODE_DEFAULT; break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = 0x10 + device; break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: *value = 0; break;
    default: call.Refuse(Format("attribute %d", attribute));
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  MODEL_CALL(cuDeviceCanAccessPeer);
  if (!IsGpu(device) || !IsGpu(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = IsPeer(device, peer);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from,
                                 CUdevice to) {
  MODEL_CALL(cuDeviceGetP2PAttribute);
  if (!IsGpu(from) || !IsGpu(to)) return CUDA_ERROR_INVALID_DEVICE;
  if (from == to) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = 0; break;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: *value = IsPeer(from, to); break;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = 0; break;
    default: call.Refuse(Format("attribute %d", attribute));
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  MODEL_CALL(cuDeviceGetPCIBusId);
  const std::string text = Format("0000:%02X:00.0", 0x10 + device);
  if (!IsGpu(device) || length <= static_cast<int>(text.size())) return CUDA_ERROR_INVALID_VALUE;
  std::strcpy(id, text.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  MODEL_CALL(cuDevicePrimaryCtxRetain);
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  Gpu& gpu = TheMachine().gpus[device];
  if (gpu.error != CUDA_SUCCESS) return gpu.error;
  ++gpu.retained;
  *context = reinterpret_cast<CUcontext>(&gpu);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  MODEL_CALL(cuDevicePrimaryCtxRelease);
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  Gpu& gpu = TheMachine().gpus[device];
  if (gpu.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --gpu.retained;
  if (gpu.retained == 0) TheMachine().EndContext(gpu);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  MODEL_CALL(cuCtxPushCurrent);
  for (Gpu& gpu : TheMachine().gpus) {
    if (reinterpret_cast<CUcontext>(&gpu) == context && gpu.retained) {
      CurrentContexts().push_back(&gpu);
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  MODEL_CALL(cuCtxPopCurrent);
  Gpu& gpu = call.Context();
  if (context) *context = reinterpret_cast<CUcontext>(&gpu);
  CurrentContexts().pop_back();
  return CUDA_SUCCESS;
}
