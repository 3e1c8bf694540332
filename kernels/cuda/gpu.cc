#include "kernels/cuda/gpu.h"

#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/cuda/work_clock.h"

namespace agmm {
namespace {

// Await polls without sleeping for the time of a few large copies, and naps afterwards.
constexpr int64_t kSpinNs = 1'000'000;
constexpr std::chrono::microseconds kAwaitNap(20);
// The time that awaited work may take, in addition to that of all work that has begun; and the time
// that it may take once the GPU is given up.
constexpr int64_t kAwaitNs = 30'000'000'000, kLateAwaitNs = 2'000'000'000;

// The open GPUs of this process, by number.
struct Registry {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Gpu>> gpus;
};
Registry& OpenGpus() {
  static Registry* const registry = new Registry;
  return *registry;
}

// Returns the topology of the machine's `count` GPUs.
absl::StatusOr<GpuTopology> FindTopology(Gpu& gpu, int count) {
  std::vector<std::vector<bool>> access(count, std::vector<bool>(count, true));
  for (int one = 0; one < count; ++one) {
    for (int other = 0; other < one; ++other) {
      CUdevice devices[2] = {};
      int there = 0, back = 0;
      AGMM_CUDA_RETURN(gpu, cuDeviceGet, &devices[0], one);
      AGMM_CUDA_RETURN(gpu, cuDeviceGet, &devices[1], other);
      AGMM_CUDA_RETURN(gpu, cuDeviceCanAccessPeer, &there, devices[0], devices[1]);
      AGMM_CUDA_RETURN(gpu, cuDeviceCanAccessPeer, &back, devices[1], devices[0]);
      access[one][other] = access[other][one] = there != 0 && back != 0;
    }
  }
  return GpuTopology(std::move(access));
}

}  // namespace

Gpu::Gpu(const Driver& driver, int number)
    : driver_(driver),
      number_(number),
      where_(absl::StrCat("GPU ", number)),
      health_(where_),
      kernels_(driver) {}

absl::StatusOr<std::shared_ptr<Gpu>> Gpu::Open(int number, bool shared,
                                               GpuHealth::FailureFn on_failure) {
  AGMM_ASSIGN_OR_RETURN(const Driver* const driver, OpenDriver());
  std::lock_guard lock(OpenGpus().mutex);
  std::weak_ptr<Gpu>& open = OpenGpus().gpus[number];
  if (std::shared_ptr<Gpu> gpu = open.lock(); gpu != nullptr) return gpu;
  std::shared_ptr<Gpu> gpu(new Gpu(*driver, number));
  AGMM_RETURN_IF_ERROR(gpu->Init(shared));
  gpu->health_.Watch(std::move(on_failure));
  open = gpu;
  return gpu;
}

void Gpu::WakeAll() {
  std::vector<std::shared_ptr<Gpu>> gpus;
  {
    std::lock_guard lock(OpenGpus().mutex);
    for (const auto& [number, open] : OpenGpus().gpus) gpus.push_back(open.lock());
  }
  for (const std::shared_ptr<Gpu>& gpu : gpus) {
    if (gpu != nullptr) gpu->thread_->Wake();
  }
}

absl::Status Gpu::Init(bool shared) {
  int count = 0;
  AGMM_CUDA_RETURN(*this, cuDeviceGetCount, &count);
  if (number_ < 0 || number_ >= count) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s does not exist; this machine has %d, numbered from 0, as far as CUDA_VISIBLE_DEVICES "
        "shows them",
        where_, count));
  }
  AGMM_CUDA_RETURN(*this, cuDeviceGet, &device_, number_);
  CUuuid uuid;
  AGMM_CUDA_RETURN(*this, cuDeviceGetUuid, &uuid, device_);
  AGMM_ASSIGN_OR_RETURN(
      lease_,
      GpuLease::Take(absl::BytesToHexString({uuid.bytes, sizeof(uuid.bytes)}), shared, where_));
  AGMM_CUDA_RETURN(*this, cuDevicePrimaryCtxRetain, &context_, device_);
  const OnGpu here(*this);
  // Is 0 if a GPU has no priorities.
  AGMM_CUDA_RETURN(*this, cuCtxGetStreamPriorityRange, nullptr, &first_priority_);
  AGMM_RETURN_IF_ERROR(Check(kernels_.Load(), "loading the kernels"));
  AGMM_RETURN_IF_ERROR(LoadProducts());
  AGMM_ASSIGN_OR_RETURN(gemm_, CudaGemm::Create(where_));
  AGMM_RETURN_IF_ERROR(Describe(count));
  AGMM_ASSIGN_OR_RETURN(thread_, GpuThread::Start(driver_, context_, where_));
  return absl::OkStatus();
}

absl::Status Gpu::Describe(int count) {
  char name[256] = {};
  size_t bytes = 0;
  AGMM_CUDA_RETURN(*this, cuDeviceGetName, name, sizeof(name), device_);
  AGMM_CUDA_RETURN(*this, cuDeviceTotalMem, &bytes, device_);
  AGMM_ASSIGN_OR_RETURN(topology_, FindTopology(*this, count));
  description_ = absl::StrFormat(
      "%s, %s, driver of CUDA %s, cuBLASLt %s, %s", name, FormatBytes(static_cast<int64_t>(bytes)),
      CudaVersionText(driver_.version), gemm_->version(), topology_.ReachText(number_));
  return absl::OkStatus();
}

absl::Status Gpu::LoadProducts() {
  int major = 0, minor = 0;
  AGMM_CUDA_RETURN(*this, cuDeviceGetAttribute, &sms_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                   device_);
  AGMM_CUDA_RETURN(*this, cuDeviceGetAttribute, &major,
                   CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device_);
  AGMM_CUDA_RETURN(*this, cuDeviceGetAttribute, &minor,
                   CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device_);
  if (major != 9 || minor != 0) return absl::OkStatus();
  products_ = std::make_unique<ProductKernels>(driver_);
  return Check(products_->Load(), "loading the kernels of products");
}

Gpu::~Gpu() {
  thread_.reset();
  if (context_ == nullptr) return;
  const bool given_up = !health_.given_up().ok();
  {
    const OnGpu here(*this);
    if (given_up) gemm_->Keep();
    gemm_.reset();
    if (!given_up) kernels_.Unload();
    if (!given_up && products_ != nullptr) products_->Unload();
  }
  if (!given_up) driver_.cuDevicePrimaryCtxRelease(device_);
}

absl::Status Gpu::Failed(CUresult result, const char* call) {
  const absl::Status status = CudaStatus(driver_, result, call, where_);
  if (FaultOf(result) != CudaFault::kLost) return status;
  if (!health_.Lose(status)) return health_.lost();
  // Without a thread, Open is still running: nothing waits, and it holds the registry.
  if (thread_ != nullptr) WakeAll();
  return status;
}

absl::Status Gpu::Check(cublasStatus_t result, const char* call) {
  if (result == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  if (const CUresult asked = Ask(); FaultOf(asked) == CudaFault::kLost) return Failed(asked, call);
  return CublasStatus(result, call, where_);
}

CUresult Gpu::Ask() const {
  const OnGpu here(*this);
  if (here.pushed() != CUDA_SUCCESS) return here.pushed();
  size_t free = 0, total = 0;
  return driver_.cuMemGetInfo(&free, &total);
}

absl::Status Gpu::Await(CUevent event, int64_t bytes, const char* work) {
  const WorkClock::Begun begun(/*ns=*/bytes);  // at 1 GB/s
  const int64_t grace_ns = AGMM_FAILPOINT("executor.short_grace") ? kAwaitNs / 10 : kAwaitNs;
  const int64_t allowed_ns = grace_ns + WorkClock::begun_ns();
  const int64_t begin_ns = MonotonicNanos();
  int64_t given_up_ns = 0;  // when Await noticed this
  for (;;) {
    // Read before the GPU is asked, because this thread may be suspended for any time after that.
    const int64_t now_ns = MonotonicNanos(), waited_ns = now_ns - begin_ns;
    const CUresult result = driver_.cuEventQuery(event);
    if (result != CUDA_ERROR_NOT_READY) return Check(result, "cuEventQuery");
    if (given_up_ns == 0 && !health_.given_up().ok()) given_up_ns = now_ns;
    if (waited_ns > allowed_ns || (given_up_ns > 0 && now_ns - given_up_ns > kLateAwaitNs)) {
      health_.GiveUp(absl::UnavailableError(
          absl::StrFormat("%s has not ended %s after %.1f s (limit %.1f s); restart the daemon",
                          where_, work, waited_ns * 1e-9, allowed_ns * 1e-9)));
      return health_.given_up();
    }
    if (waited_ns < kSpinNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kAwaitNap);
    }
  }
}

}  // namespace agmm
