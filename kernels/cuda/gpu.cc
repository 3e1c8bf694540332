#include "kernels/cuda/gpu.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "kernels/base/thread.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// "reaches GPUs 1 to 3, 5": the GPUs but `number` itself whose memory it loads and stores.
std::string ReachText(int number, const std::vector<bool>& peers) {
  const int count = static_cast<int>(peers.size());
  const auto reached = [&](int gpu) { return gpu < count && gpu != number && peers[gpu]; };
  std::vector<std::string> ranges;
  int reached_count = 0;
  for (int first = 0, end; first < count; first = end + 1) {
    for (end = first; reached(end);) ++end;
    reached_count += end - first;
    if (end - first == 1) ranges.push_back(absl::StrCat(first));
    if (end - first > 1) ranges.push_back(absl::StrCat(first, " to ", end - 1));
  }
  if (ranges.empty()) return "reaches no other GPU";
  return absl::StrCat(reached_count == 1 ? "reaches GPU " : "reaches GPUs ",
                      absl::StrJoin(ranges, ", "));
}

// Polling time after the last progress without sleep, and the naps after it. A step of a large
// product takes longer than both, one of a small product shorter.
constexpr int64_t kPollNs = 50'000;
constexpr std::chrono::microseconds kNap(20);

// The time in which a copy of a heap is waited for without sleep: that of some large chunks.
constexpr int64_t kSpinNs = 1'000'000;
// Time that awaited work has beside that of all work that has begun; and its time once the GPU is
// given up.
constexpr int64_t kAwaitNs = 30'000'000'000, kLateAwaitNs = 2'000'000'000;

// Opens the file, or makes it. Without O_CREAT where it exists, because kernels may refuse that for
// the file of another user in a folder for all.
int OpenLock(const std::string& path) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW;
  for (const int mode : {O_RDWR, O_RDONLY}) {
    const int file = open(path.c_str(), kFlags | mode);
    if (file >= 0) return file;
  }
  const int file = open(path.c_str(), kFlags | O_RDWR | O_CREAT, 0666);
  if (file >= 0) fchmod(file, 0666);
  return file;
}

// Returns true if `path` still names the open file, which its last holder may have removed
// meanwhile.
bool IsFile(int file, const std::string& path) {
  struct stat opened, named;
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// The open GPUs of this process, by number.
struct Registry {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Gpu>> gpus;
};
Registry& OpenGpus() {
  static Registry* const registry = new Registry;
  return *registry;
}

// The island of each GPU: it joins the first one whose GPUs all have access to it and it to them.
std::vector<int> IslandsOf(const std::vector<std::vector<bool>>& access) {
  const int count = static_cast<int>(access.size());
  std::vector<int> islands;
  for (int gpu = 0; gpu < count; ++gpu) {
    int island = 0;
    const auto fits = [&] {
      for (int other = 0; other < gpu; ++other)
        if (islands[other] == island && !access[gpu][other]) return false;
      return true;
    };
    while (island < gpu && (islands[island] != island || !fits())) ++island;
    islands.push_back(island);
  }
  return islands;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Gpu>> Gpu::Open(int number, bool shared, FailureFn on_failure) {
  AGMM_ASSIGN_OR_RETURN(const Driver* const driver, OpenDriver());
  std::lock_guard lock(OpenGpus().mutex);
  std::weak_ptr<Gpu>& open = OpenGpus().gpus[number];
  if (std::shared_ptr<Gpu> gpu = open.lock(); gpu != nullptr) return gpu;
  std::shared_ptr<Gpu> gpu(new Gpu(*driver, number, std::move(on_failure)));
  AGMM_RETURN_IF_ERROR(gpu->Init(shared));
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
    if (gpu != nullptr) gpu->Wake();
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
  AGMM_RETURN_IF_ERROR(Hold(shared));
  AGMM_CUDA_RETURN(*this, cuDevicePrimaryCtxRetain, &context_, device_);
  const OnGpu here(*this);
  // 0 where a GPU has no priorities.
  AGMM_CUDA_RETURN(*this, cuCtxGetStreamPriorityRange, nullptr, &first_priority_);
  AGMM_RETURN_IF_ERROR(Check(kernels_.Load(), "loading the kernels"));
  AGMM_ASSIGN_OR_RETURN(gemm_, CudaGemm::Create(where_));
  AGMM_RETURN_IF_ERROR(FindPeers(count));
  AGMM_ASSIGN_OR_RETURN(thread_,
                        StartThread(absl::StrCat("the work of ", where_), [this] { Work(); }));
  return absl::OkStatus();
}

absl::Status Gpu::Hold(bool shared) {
  CUuuid uuid;
  AGMM_CUDA_RETURN(*this, cuDeviceGetUuid, &uuid, device_);
  lock_path_ = absl::StrCat("/tmp/agmm-gpu-",
                            absl::BytesToHexString({uuid.bytes, sizeof(uuid.bytes)}), ".lock");
  do {
    if (lock_ >= 0) close(lock_);
    lock_ = OpenLock(lock_path_);
    if (lock_ < 0) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s cannot be held: %s: %s; make the file writable for this user", where_,
                          lock_path_, std::strerror(errno)));
    }
    if (flock(lock_, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
      char holder[32] = {};
      if (pread(lock_, holder, sizeof(holder) - 1, 0) < 0) holder[0] = '\0';
      return absl::FailedPreconditionError(
          absl::StrFormat("%s is held by another daemon, process %d (%s); give this one another "
                          "GPU or end that one",
                          where_, std::atoi(holder), lock_path_));
    }
  } while (!IsFile(lock_, lock_path_));
  const std::string holder = absl::StrCat(getpid(), "\n");
  // For the errors of others; not in the file of another user that only reads.
  if (ftruncate(lock_, 0) == 0 && pwrite(lock_, holder.data(), holder.size(), 0) < 0)
    return absl::InternalError(absl::StrFormat("%s: %s", lock_path_, std::strerror(errno)));
  return absl::OkStatus();
}

void Gpu::LetGo() {
  if (lock_ < 0) return;
  // Requires that no other process holds it, too.
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0 && IsFile(lock_, lock_path_)) unlink(lock_path_.c_str());
  close(lock_);
}

absl::Status Gpu::FindPeers(int count) {
  char name[256] = {};
  size_t bytes = 0;
  AGMM_CUDA_RETURN(*this, cuDeviceGetName, name, sizeof(name), device_);
  AGMM_CUDA_RETURN(*this, cuDeviceTotalMem, &bytes, device_);
  std::vector<std::vector<bool>> access(count, std::vector<bool>(count, true));
  for (int one = 0; one < count; ++one) {
    for (int other = 0; other < one; ++other) {
      CUdevice devices[2] = {};
      int there = 0, back = 0;
      AGMM_CUDA_RETURN(*this, cuDeviceGet, &devices[0], one);
      AGMM_CUDA_RETURN(*this, cuDeviceGet, &devices[1], other);
      AGMM_CUDA_RETURN(*this, cuDeviceCanAccessPeer, &there, devices[0], devices[1]);
      AGMM_CUDA_RETURN(*this, cuDeviceCanAccessPeer, &back, devices[1], devices[0]);
      access[one][other] = access[other][one] = there != 0 && back != 0;
    }
  }
  peers_ = access[number_];
  island_ = IslandsOf(access)[number_];
  description_ = absl::StrFormat(
      "%s, %s, driver of CUDA %s, cuBLASLt %s, %s", name, FormatBytes(static_cast<int64_t>(bytes)),
      CudaVersionText(driver_.version), gemm_->version(), ReachText(number_, peers_));
  return absl::OkStatus();
}

Gpu::~Gpu() {
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_all();
    }
    thread_.join();
  }
  if (context_ != nullptr) {
    {
      const OnGpu here(*this);
      if (!given_up().ok()) gemm_->Keep();
      gemm_.reset();
      if (given_up().ok()) kernels_.Unload();
    }
    if (given_up().ok()) driver_.cuDevicePrimaryCtxRelease(device_);
  }
  LetGo();
}

absl::Status Gpu::Failed(CUresult result, const char* call) {
  const absl::Status status = CudaStatus(driver_, result, call, where_);
  if (FaultOf(result) != CudaFault::kLost) return status;
  {
    std::lock_guard lock(mutex_);
    if (!lost_.ok()) return lost_;
    lost_ = status;
    is_lost_ = true;
  }
  if (!thread_.joinable()) return status;  // Open has the registry, and tells its caller
  TellFailure("lost", status);
  WakeAll();
  return status;
}

absl::Status Gpu::Check(cublasStatus_t result, const char* call) {
  if (result == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  if (const CUresult asked = Ask(); FaultOf(asked) == CudaFault::kLost) return Failed(asked, call);
  return CublasStatus(result, call, where_);
}

absl::Status Gpu::lost() const {
  if (!is_lost_) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return lost_;
}

CUresult Gpu::Ask() const {
  const OnGpu here(*this);
  if (here.pushed() != CUDA_SUCCESS) return here.pushed();
  size_t free = 0, total = 0;
  return driver_.cuMemGetInfo(&free, &total);
}

absl::Status Gpu::Await(CUevent event, int64_t bytes, const char* work) {
  const int64_t work_ns = bytes;  // at 1 GB/s
  AddBegun(work_ns);
  const absl::Cleanup ends = [work_ns] { AddBegun(-work_ns); };
  const int64_t grace_ns = AGMM_FAILPOINT("executor.short_grace") ? kAwaitNs / 10 : kAwaitNs;
  const int64_t allowed_ns = grace_ns + begun_ns();
  const int64_t begin_ns = MonotonicNanos();
  int64_t given_up_ns = 0;  // when this was seen
  for (;;) {
    // Before the GPU is asked, because this thread may rest for any time after that.
    const int64_t now_ns = MonotonicNanos(), waited_ns = now_ns - begin_ns;
    const CUresult result = driver_.cuEventQuery(event);
    if (result != CUDA_ERROR_NOT_READY) return Check(result, "cuEventQuery");
    if (given_up_ns == 0 && !given_up().ok()) given_up_ns = now_ns;
    if (waited_ns > allowed_ns || (given_up_ns > 0 && now_ns - given_up_ns > kLateAwaitNs)) {
      GiveUp(absl::UnavailableError(absl::StrFormat(
          "%s has not ended %s after %.1f s, of %.1f s that it had; restart the daemon", where_,
          work, waited_ns * 1e-9, allowed_ns * 1e-9)));
      return given_up();
    }
    if (waited_ns < kSpinNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

void Gpu::GiveUp(const absl::Status& reason) {
  {
    std::lock_guard lock(mutex_);
    if (!given_up_.ok()) return;
    given_up_ = reason;
    is_given_up_ = true;
  }
  TellFailure("given up", reason);
}

void Gpu::TellFailure(const char* is, const absl::Status& why) {
  const std::string failure = absl::StrFormat("%s is %s: %s", where_, is, why.message());
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = failure;
  }
  if (on_failure_ != nullptr) on_failure_(failure);
}

std::string Gpu::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

absl::Status Gpu::given_up() const {
  if (!is_given_up_) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return given_up_;
}

void Gpu::Add(GpuTenant* tenant) {
  std::lock_guard lock(mutex_);
  tenants_.push_back(tenant);
  woken_ = true;
  wake_.notify_all();
}

void Gpu::Remove(GpuTenant* tenant) {
  std::unique_lock lock(mutex_);
  std::erase(tenants_, tenant);
  const uint64_t pass = pass_;
  passed_.wait(lock, [&] { return !turning_ || pass_ != pass; });
}

int Gpu::tenant_count() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(tenants_.size());
}

void Gpu::Wake() {
  if (woken_.exchange(true)) return;
  std::lock_guard lock(mutex_);
  wake_.notify_all();
}

void Gpu::Work() {
  const OnGpu here(*this);
  int64_t progressed_ns = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    woken_.exchange(false);  // acquires what was raised before Wake
    ++pass_;
    turning_ = true;
    const std::vector<GpuTenant*> tenants = tenants_;
    lock.unlock();
    GpuTenant::Turn all;
    for (GpuTenant* tenant : tenants) {
      const GpuTenant::Turn turn = tenant->TakeTurn();
      all.progressed |= turn.progressed;
      all.in_hand |= turn.in_hand;
      all.next = std::min(all.next, turn.next);
    }
    const int64_t now_ns = MonotonicNanos();
    if (all.progressed) progressed_ns = now_ns;
    const bool polls = all.in_hand && now_ns - progressed_ns < kPollNs;
    if (polls && !all.progressed) std::this_thread::yield();
    lock.lock();
    turning_ = false;
    passed_.notify_all();
    if (all.progressed || polls) continue;
    const auto ready = [this] { return woken_ || stopping_; };
    if (all.in_hand) {
      wake_.wait_for(lock, kNap, ready);
    } else {
      wake_.wait_until(lock, all.next.time_point(), ready);
    }
  }
}

}  // namespace agmm
