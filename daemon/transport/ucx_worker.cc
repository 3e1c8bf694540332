#include "daemon/transport/ucx_worker.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "kernels/base/thread.h"

namespace agmm::transport {
namespace {

// Calls of UCX in one round, before tasks run.
constexpr int kProgressCalls = 64;
// Rounds of one Poll.
constexpr int kPollRounds = 8;
// UCX finishes some work, such as discarding endpoints, without an event and only when it is
// called.
constexpr absl::Duration kBusyNap = absl::Milliseconds(20);
constexpr absl::Duration kIdleNap = absl::Seconds(1);

}  // namespace

absl::Status FromUcs(ucs_status_t status, absl::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  const std::string message =
      absl::StrFormat("%s: UCX says \"%s\"", what, ucs_status_string(status));
  switch (status) {
    case UCS_ERR_NO_MEMORY: return absl::ResourceExhaustedError(message);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR: return absl::InvalidArgumentError(message);
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNSUPPORTED: return absl::FailedPreconditionError(message);
    case UCS_ERR_CANCELED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_UNREACHABLE: return absl::AbortedError(message);
    default: return absl::InternalError(message);
  }
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const TransportOptions& options) {
  std::unique_ptr<UcxWorker> made(new UcxWorker(options));
  AGMM_RETURN_IF_ERROR(made->Open());
  return made;
}

absl::Status UcxWorker::Open() {
  ReturnSignals();
  LeaveOutCuda();
  AGMM_ASSIGN_OR_RETURN(
      local_,
      FindLocalAddress(options_.bind_address.empty() ? "127.0.0.1" : options_.bind_address));
  AGMM_ASSIGN_OR_RETURN(const auto settings, UcxSettings(options_, local_.interface));
  ucp_config_t* config = nullptr;
  AGMM_RETURN_IF_ERROR(
      FromUcs(ucp_config_read(nullptr, nullptr, &config), "reading UCX's configuration"));
  absl::Cleanup release_config = [config] { ucp_config_release(config); };
  for (const auto& [name, value] : settings) {
    AGMM_RETURN_IF_ERROR(FromUcs(ucp_config_modify(config, name.c_str(), value.c_str()),
                                 absl::StrFormat("setting UCX_%s=%s", name, value)));
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "agmm";
  {
    const ShownAddress shown(local_.socket);
    AGMM_RETURN_IF_ERROR(FromUcs(ucp_init(&params, config, &context_), "ucp_init"));
  }
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0)
    return absl::ResourceExhaustedError("eventfd: no file descriptor left; raise ulimit -n");
  return OpenWorker();
}

absl::Status UcxWorker::OpenWorker() {
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // created here, driven by the thread
  worker_params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  listener_ = std::make_unique<HandshakeListener>(options_, &refused_);
  ucs_status_t created;
  {
    const ShownAddress shown(local_.socket);
    SetNextListener(listener_.get());
    created = ucp_worker_create(context_, &worker_params, &worker_);
    SetNextListener(nullptr);
  }
  AGMM_RETURN_IF_ERROR(listener_->opened());
  AGMM_RETURN_IF_ERROR(FromUcs(created, "ucp_worker_create"));
  AGMM_RETURN_IF_ERROR(FromUcs(ucp_worker_get_efd(worker_, &ucx_fd_), "ucp_worker_get_efd"));
  ucp_address_t* address = nullptr;
  size_t length = 0;
  AGMM_RETURN_IF_ERROR(
      FromUcs(ucp_worker_get_address(worker_, &address, &length), "ucp_worker_get_address"));
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

void UcxWorker::CloseWorker(bool over) {
  listener_ = nullptr;  // before UCX closes the socket
  ucp_worker_h const worker = std::exchange(worker_, nullptr);
  if (worker != nullptr && over) ucp_worker_destroy(worker);
  left_alone_ = left_alone_ || (worker != nullptr && !over);
  ucx_fd_ = -1;
}

absl::Status UcxWorker::Renew(bool over, const std::function<void()>& closed) {
  CloseWorker(over);
  closed();
  absl::Status status = OpenWorker();
  if (!status.ok()) CloseWorker(/*over=*/true);
  return status;
}

UcxWorker::~UcxWorker() { Close(); }

void UcxWorker::Close(bool over) {
  std::vector<Task> left;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(tasks_);
  }
  left.clear();
  timers_.clear();
  CloseWorker(over);
  if (context_ != nullptr && !left_alone_) ucp_cleanup(context_);
  context_ = nullptr;
  if (wake_fd_ >= 0) close(std::exchange(wake_fd_, -1));
}

absl::Status UcxWorker::Start(std::function<bool()> busy) {
  busy_ = std::move(busy);
  AGMM_ASSIGN_OR_RETURN(thread_, StartThread("the transport", [this] { Loop(); }));
  return absl::OkStatus();
}

void UcxWorker::Stop(std::function<bool()> finished) {
  {
    std::lock_guard lock(mutex_);
    finished_ = std::move(finished);
    WakeSleeper();
  }
  if (thread_.joinable()) thread_.join();
}

void UcxWorker::Post(Task task) {
  std::lock_guard lock(mutex_);
  if (closed_) return;  // the task is destroyed with the caller's argument, without the lock
  tasks_.push_back(std::move(task));
  if (sleeper_ == Sleeper::kAsleep) WakeSleeper();
}

void UcxWorker::Wake() {
  std::lock_guard lock(mutex_);
  WakeSleeper();
}

void UcxWorker::WakeSleeper() {
  if (sleeper_ == Sleeper::kAsleep) {
    eventfd_write(wake_fd_, 1);
    sleeper_ = Sleeper::kAwake;
  } else {
    sleeper_ = Sleeper::kWoken;
  }
}

void UcxWorker::After(absl::Duration delay, Task task) {
  timers_.emplace(MonotonicNanos() + absl::ToInt64Nanoseconds(delay), std::move(task));
}

bool UcxWorker::Round() {
  {
    std::lock_guard lock(mutex_);
    running_.swap(tasks_);
  }
  bool worked = !running_.empty();
  for (Task& task : running_) task();
  running_.clear();
  while (!timers_.empty() && timers_.begin()->first <= MonotonicNanos()) {
    Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
    worked = true;
  }
  for (int round = 0; round < kProgressCalls && worker_ != nullptr; ++round) {
    if (ucp_worker_progress(worker_) == 0) break;
    worked = true;
  }
  return worked;
}

void UcxWorker::Loop() {
  while (true) {
    std::function<bool()> finished;
    {
      std::unique_lock lock(mutex_);
      if (lent_to_ != std::thread::id()) {
        aside_ = true;
        seat_.notify_all();
        seat_.wait(lock, [this] { return lent_to_ == std::thread::id(); });
        aside_ = false;
      }
      finished = finished_;
    }
    const bool worked = Round();
    if (finished != nullptr && finished()) return;
    if (!worked) Sleep(kIdleNap);
  }
}

bool UcxWorker::Take() {
  std::unique_lock lock(mutex_);
  const bool mine = lent_to_ == std::this_thread::get_id();
  if (finished_ != nullptr || (!mine && lent_to_ != std::thread::id())) {
    if (mine) lent_to_ = {};
    seat_.notify_all();
    return false;
  }
  if (mine) return true;
  lent_to_ = std::this_thread::get_id();
  WakeSleeper();
  seat_.wait(lock, [this] { return aside_; });
  return true;
}

bool UcxWorker::Drive(absl::FunctionRef<bool()> done, Deadline deadline, absl::Duration spin) {
  if (!Take()) return false;
  const int64_t spin_ns = absl::ToInt64Nanoseconds(spin);
  int64_t sleep_from_ns = MonotonicNanos() + spin_ns;
  while (!done()) {
    if (!Take()) return false;
    const bool worked = Round();
    const int64_t now_ns = MonotonicNanos();
    if (worked) {
      sleep_from_ns = now_ns + spin_ns;
    } else if (now_ns < sleep_from_ns) {
      sched_yield();
    } else {
      const absl::Duration left = deadline.Left(now_ns);
      if (left <= absl::ZeroDuration()) break;
      Sleep(std::min(left, kIdleNap));
    }
  }
  return true;
}

bool UcxWorker::Poll() {
  if (!Take()) return false;
  // Bounded, because a flood from a peer must not delay the thread with the seat.
  for (int round = 0; round < kPollRounds && Round(); ++round) {
  }
  return true;
}

void UcxWorker::Leave() {
  std::lock_guard lock(mutex_);
  if (lent_to_ != std::this_thread::get_id()) return;
  lent_to_ = {};
  seat_.notify_all();
}

void UcxWorker::Sleep(absl::Duration limit) {
  // Arming fails while UCX has work left.
  const ucs_status_t armed = worker_ == nullptr ? UCS_OK : ucp_worker_arm(worker_);
  if (armed == UCS_ERR_BUSY) return;
  absl::Duration nap = std::min(limit, busy_() ? kBusyNap : kIdleNap);
  if (armed != UCS_OK) nap = absl::Milliseconds(1);
  if (!timers_.empty()) {
    nap = std::min(nap, absl::Nanoseconds(timers_.begin()->first - MonotonicNanos()));
  }
  {
    std::lock_guard lock(mutex_);
    if (!tasks_.empty() || std::exchange(sleeper_, Sleeper::kAwake) == Sleeper::kWoken) return;
    sleeper_ = Sleeper::kAsleep;
  }
  pollfd fds[] = {{ucx_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  const timespec timeout = absl::ToTimespec(std::max(nap, absl::ZeroDuration()));
  ppoll(fds, 2, &timeout, nullptr);
  std::lock_guard lock(mutex_);
  if (sleeper_ == Sleeper::kAsleep) sleeper_ = Sleeper::kAwake;
  eventfd_t count;
  if (fds[1].revents != 0) eventfd_read(wake_fd_, &count);
}

}  // namespace agmm::transport
