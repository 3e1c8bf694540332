// One UCX worker and the thread that drives it: its own, or one that has been lent. UCX is called,
// and tasks run, on that thread only; "on the thread" below and in the files around means whoever
// has the seat.
#pragma once

#include <ucp/api/ucp.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/transport/ucx_transport.h"
#include "kernels/device/progress_engine.h"

namespace agmm::transport {

// `status` of UCX as ours, with `what` in front: what was tried.
absl::Status FromUcs(ucs_status_t status, absl::string_view what);

class UcxWorker final : public ProgressEngine {
 public:
  using Task = absl::AnyInvocable<void()>;

  // Errors: as UcxTransport::Create.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const TransportOptions& options);
  ~UcxWorker() override;

  // Runs the loop on a new thread. `busy` says on that thread whether requests are in flight: then
  // the loop looks at UCX now and then even if nothing wakes it.
  void Start(std::function<bool()> busy);
  // Ends the loop when `finished` says so, asked on its thread after each round; then joins.
  // Whoever has been lent loses the seat the next time it drives or polls, and must.
  void Stop(std::function<bool()> finished);
  // Ends UCX, after Stop: it touches no memory of ours any more. Tasks that have not run are
  // destroyed, and so are all that still come.
  void Close();

  // Runs `task` on the thread, in order. Any thread; never blocks.
  void Post(Task task);
  // Runs `task` on the thread when `delay` is over. On the thread only.
  void After(absl::Duration delay, Task task);

  bool Drive(absl::FunctionRef<bool()> done, absl::Time deadline, absl::Duration spin) override;
  bool Poll() override;
  void Leave() override;
  void Wake() override;

  ucp_worker_h handle() const { return worker_; }
  // The worker's address bytes.
  const std::string& address() const { return address_; }

 private:
  UcxWorker() = default;
  absl::Status Open(const TransportOptions& options);
  void Loop();
  // The seat, from the own thread, who steps aside. False: it is another's, or closing.
  bool Take();
  // Tasks, timers and UCX, once. True if there was anything.
  bool Round();
  bool RunTasks();
  bool RunTimers();
  // At most for `limit`.
  void Sleep(absl::Duration limit);
  void WakeSleeper() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int ucx_fd_ = -1;   // readable when UCX has something to do; UCX's own
  int wake_fd_ = -1;  // readable when a task came while the thread slept
  std::function<bool()> busy_;
  std::thread thread_;

  std::multimap<int64_t, Task> timers_;  // by MonotonicNanos; on the thread only
  std::vector<Task> running_;            // on the thread only

  std::mutex mutex_;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;  // whoever has the seat
  bool woken_ ABSL_GUARDED_BY(mutex_) =
      false;  // awake then: it must look around once more before it sleeps
  std::thread::id lent_to_ ABSL_GUARDED_BY(mutex_);
  bool aside_ ABSL_GUARDED_BY(mutex_) = false;  // the own thread waits for the seat
  std::condition_variable seat_;                // lent_to_ or aside_ has changed
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<bool()> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace agmm::transport
