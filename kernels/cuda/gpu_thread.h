// The thread that submits a GPU's work and queries its events.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/deadline.h"
#include "kernels/cuda/driver.h"

namespace agmm {

// Work that a GPU's thread advances: a rank's queue of epochs.
class GpuTenant {
 public:
  struct Turn {
    bool progressed = false;  // more may be done at once
    bool in_hand = false;     // the GPU has work whose end matters
    Deadline next;            // the earliest deadline of something that waits
  };
  virtual ~GpuTenant() = default;
  // Called on the GPU's thread, with its context current. Submits the work that is ready, and ends
  // the work that is done.
  virtual Turn TakeTurn() = 0;
};

// Gives turns to its tenants, which touch their own state in them without a lock. Any thread may
// call any method, but TakeTurn must not call Remove.
class GpuThread {
 public:
  // `where` names the GPU: "GPU 2". Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<GpuThread>> Start(const Driver& driver, CUcontext context,
                                                          const std::string& where);
  // Waits for the thread.
  ~GpuThread();
  GpuThread(const GpuThread&) = delete;
  GpuThread& operator=(const GpuThread&) = delete;

  // The tenant takes turns from now on.
  void Add(GpuTenant* tenant);
  // Returns when the tenant's last turn is over.
  void Remove(GpuTenant* tenant);
  int tenant_count() const;
  // Gives every tenant a turn soon.
  void Wake();

 private:
  GpuThread() = default;
  void Work();

  mutable std::mutex mutex_;
  std::condition_variable wake_, passed_;
  std::atomic<bool> woken_{false};
  std::vector<GpuTenant*> tenants_;
  uint64_t pass_ = 0;  // rounds of turns begun
  bool turning_ = false, stopping_ = false;
  std::thread thread_;
};

// Requests of other threads to a tenant, which obeys them in its turns. Thread-safe.
class GpuInbox {
 public:
  explicit GpuInbox(GpuThread& thread) : thread_(thread) {}

  // Gives the tenant a turn soon, in which it calls `request`.
  void Post(std::function<void()> request);
  // Calls all requests, in their order.
  void Obey();

 private:
  GpuThread& thread_;
  std::mutex mutex_;
  std::vector<std::function<void()>> requests_;
};

}  // namespace agmm
