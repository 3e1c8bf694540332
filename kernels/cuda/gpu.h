// One GPU of this process: its primary context with its kernels and products, the lease on it, its
// neighbours, its health, and the thread that submits its work. Shared by the ranks on it.
//
// A stream never waits for work that has not been submitted, so a call that submits may block but
// returns, unless the GPU hangs. The host queries the ends of work (Await) and never blocks on
// them.
//
// Threads: Open sets all members, which are constant afterwards or thread-safe, so any thread may
// call any method. A thread makes the context current (OnGpu) before it calls the driver.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gpu_health.h"
#include "kernels/cuda/gpu_lease.h"
#include "kernels/cuda/gpu_thread.h"
#include "kernels/cuda/gpu_topology.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/product_kernels.h"

namespace agmm {

class Gpu {
 public:
  // Returns the GPU with this number. All callers share one object, which the last one releases.
  // Unless `shared`, no other process holds the GPU meanwhile. The first caller's `on_failure` is
  // passed to GpuHealth::Watch. Errors: those of OpenDriver and OpenCublasLt; INVALID_ARGUMENT for
  // a number that this machine does not have; FAILED_PRECONDITION for a GPU that another daemon
  // holds.
  static absl::StatusOr<std::shared_ptr<Gpu>> Open(int number, bool shared,
                                                   GpuHealth::FailureFn on_failure = nullptr);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const Driver& driver() const { return driver_; }
  const Kernels& kernels() const { return kernels_; }
  CudaGemm& gemm() const { return *gemm_; }
  // The same for all GPUs of this machine.
  const GpuTopology& topology() const { return topology_; }
  GpuHealth& health() { return health_; }
  const GpuHealth& health() const { return health_; }
  GpuThread& thread() const { return *thread_; }
  int number() const { return number_; }
  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  const std::string& where() const { return where_; }  // "GPU 2"
  // "H100 80GB HBM3, 79.2 GiB, driver of CUDA 13.0, cuBLASLt 13.1.0, reaches GPUs 1 to 3".
  const std::string& description() const { return description_; }
  // The priority of a stream whose kernels run before those of other streams, which have 0.
  int first_priority() const { return first_priority_; }
  int sms() const { return sms_; }
  // The kernels for products of GPUs of this architecture; null if there are none.
  const ProductKernels* products() const { return products_.get(); }

  // Returns the status of a call that did not succeed. If it says that the GPU is lost, this is
  // recorded in health(), and the tenants of all GPUs get a turn.
  absl::Status Failed(CUresult result, const char* call);
  absl::Status Check(CUresult result, const char* call) {
    return result == CUDA_SUCCESS ? absl::OkStatus() : Failed(result, call);
  }
  // The same for a call of cuBLASLt. Asks the GPU, because cuBLASLt does not pass on the driver's
  // error.
  absl::Status Check(cublasStatus_t result, const char* call);
  // Makes a call that fails only if this GPU is lost, and returns its result. Shows which GPU
  // caused the error of a call on several GPUs.
  CUresult Ask() const;

  // Blocks until this GPU reaches the event, which follows work that moves or makes `bytes`; `work`
  // names it in errors. The bound is the time of these bytes and of all work that has begun, and
  // 30 s. Errors: UNAVAILABLE for a GPU that is lost, and for one whose work does not end, which is
  // then given up.
  absl::Status Await(CUevent event, int64_t bytes, const char* work);

 private:
  Gpu(const Driver& driver, int number);
  static void WakeAll();
  absl::Status Init(bool shared);
  absl::Status Describe(int count);
  absl::Status LoadProducts();

  const Driver& driver_;
  const int number_;
  const std::string where_;
  GpuHealth health_;
  CUdevice device_ = 0;
  std::unique_ptr<GpuLease> lease_;
  CUcontext context_ = nullptr;
  std::string description_;
  GpuTopology topology_;
  int first_priority_ = 0;
  int sms_ = 0;
  Kernels kernels_;
  std::unique_ptr<ProductKernels> products_;
  std::unique_ptr<CudaGemm> gemm_;
  std::unique_ptr<GpuThread> thread_;
};

// Makes the GPU's context current on this thread during its lifetime.
class OnGpu : public InContext {
 public:
  explicit OnGpu(const Gpu& gpu) : InContext(gpu.driver(), gpu.context()) {}
};

}  // namespace agmm
