// One GPU of this process: its primary context, its kernels and products, and the thread that
// submits its work and polls its events. Shared by the ranks on it.
//
// A stream never waits for what has not been submitted, so a call that submits may block and still
// ends, unless the GPU hangs. The ends of work are asked for and not waited for (Await).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/deadline.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"

namespace agmm {

// Work that a GPU's thread advances: a rank's queue of epochs.
class GpuTenant {
 public:
  struct Turn {
    bool progressed = false;  // more may be done at once
    bool in_hand = false;     // the GPU has work whose end matters
    Deadline next;            // of what waits
  };
  virtual ~GpuTenant() = default;
  // On the GPU's thread, with its context current. Submits what is ready and ends what is done.
  virtual Turn TakeTurn() = 0;
};

class Gpu {
 public:
  using FailureFn = std::function<void(const std::string& why)>;
  // The GPU with this number, opened by the first caller and shared until the last one is done with
  // it. Unless `shared`, no other process has it meanwhile. Errors: those of OpenDriver and
  // OpenCublasLt; INVALID_ARGUMENT for a number that this machine does not have;
  // FAILED_PRECONDITION for a GPU that another daemon holds. The first caller's `on_failure` is
  // called once, on any thread, with the value of failure() from then on.
  static absl::StatusOr<std::shared_ptr<Gpu>> Open(int number, bool shared,
                                                   FailureFn on_failure = nullptr);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const Driver& driver() const { return driver_; }
  const Kernels& kernels() const { return kernels_; }
  CudaGemm& gemm() const { return *gemm_; }
  int number() const { return number_; }
  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  const std::string& where() const { return where_; }  // "GPU 2"
  // "H100 80GB HBM3, 79.2 GiB, driver of CUDA 13.0, cuBLASLt 13.1.0, reaches GPUs 1 to 3".
  const std::string& description() const { return description_; }
  // By number, of all GPUs of this machine, also this one: whether each loads and stores the
  // other's memory.
  const std::vector<bool>& peers() const { return peers_; }
  // The lowest number among the GPUs of its island: a set in which each pair has peer access. All
  // GPUs find the same sets.
  int island() const { return island_; }
  // The priority of a stream whose kernels go before those of others; theirs is 0.
  int first_priority() const { return first_priority_; }

  // The status of a call that did not succeed. If it says that the GPU is lost, this is remembered,
  // and all GPUs' tenants get a turn.
  absl::Status Failed(CUresult result, const char* call);
  absl::Status Check(CUresult result, const char* call) {
    return result == CUDA_SUCCESS ? absl::OkStatus() : Failed(result, call);
  }
  // The same for a call of cuBLASLt's, which does not say what the driver told it: the GPU is
  // asked.
  absl::Status Check(cublasStatus_t result, const char* call);
  // OK, or why no call will succeed any more.
  absl::Status lost() const;
  // Asks this GPU whether it is lost: the result of a call that nothing else can fail. For an error
  // of a call that concerned several GPUs.
  CUresult Ask() const;

  // Blocks until the event of this GPU is reached, which is behind `work`, as errors call it, that
  // moves or makes `bytes`. It has the time of these, of all work that has begun, and 30 s. Errors:
  // UNAVAILABLE for a GPU that is lost, and for one whose work does not end, which is then given
  // up.
  absl::Status Await(CUevent event, int64_t bytes, const char* work);
  // Some work of the GPU may never end, for this reason. What it may use is from now on kept for
  // as long as the process lives, because the driver's calls that destroy and free would wait for
  // it, and others would get memory that it may still write. The first reason stays.
  void GiveUp(const absl::Status& reason);
  // OK, or why the GPU was given up.
  absl::Status given_up() const;
  // "GPU 2 is given up: ...; restart the daemon": why the GPU is lost or given up, whichever came
  // first. Empty if it is neither.
  std::string failure() const;

  // Work begins, or with a negative time ends, that may take `ns` on a GPU of this process.
  static void AddBegun(int64_t ns) { begun_ns_ += ns; }
  // The time that all work together may take which has begun and not ended. Of all GPUs, because
  // work of one may lie behind work that waits for another one, and so on.
  static int64_t begun_ns() { return begun_ns_; }

  // The tenant takes turns from now on; after Remove, which is not for the GPU's thread, no longer.
  void Add(GpuTenant* tenant);
  void Remove(GpuTenant* tenant);
  int tenant_count() const;
  // Gives every tenant a turn soon. Any thread.
  void Wake();

 private:
  Gpu(const Driver& driver, int number, FailureFn on_failure)
      : driver_(driver),
        number_(number),
        on_failure_(std::move(on_failure)),
        where_("GPU " + std::to_string(number)),
        kernels_(driver) {}
  static void WakeAll();
  // Keeps and tells the first failure: what the GPU is now, and why.
  void TellFailure(const char* is, const absl::Status& why);
  absl::Status Init(bool shared);
  absl::Status Hold(bool shared);  // takes the lock of the machine
  void LetGo();
  absl::Status FindPeers(int count);
  void Work();

  inline static std::atomic<int64_t> begun_ns_{0};

  const Driver& driver_;
  const int number_;
  const FailureFn on_failure_;  // may be null
  const std::string where_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  int lock_ = -1;  // a file that is locked while the GPU is held
  std::string lock_path_;
  std::string description_;
  std::vector<bool> peers_;
  int island_ = 0;
  int first_priority_ = 0;
  Kernels kernels_;
  std::unique_ptr<CudaGemm> gemm_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, passed_;
  std::atomic<bool> woken_{false};
  std::atomic<bool> is_lost_{false}, is_given_up_{false};
  absl::Status lost_, given_up_;
  std::string failure_;
  std::vector<GpuTenant*> tenants_;
  uint64_t pass_ = 0;  // rounds of turns begun
  bool turning_ = false, stopping_ = false;
  std::thread thread_;
};

// Makes the GPU's context current on this thread during its lifetime.
class OnGpu {
 public:
  explicit OnGpu(const Gpu& gpu)
      : gpu_(gpu), pushed_(gpu.driver().cuCtxPushCurrent(gpu.context())) {}
  ~OnGpu() {
    CUcontext context;
    if (pushed_ == CUDA_SUCCESS) gpu_.driver().cuCtxPopCurrent(&context);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  // An error of a GPU that is lost: then another context, or none, is current.
  CUresult pushed() const { return pushed_; }

 private:
  const Gpu& gpu_;
  const CUresult pushed_;
};

}  // namespace agmm
