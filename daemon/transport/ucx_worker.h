// One UCX worker and the thread that drives it: its own thread, or one lent by a device. UCX is
// called and tasks run only on the thread that has the seat (kernels/device/progress_engine.h),
// which this folder calls the progress thread.
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

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/transport/handshake_listener.h"
#include "daemon/transport/types.h"
#include "daemon/transport/ucx_config.h"
#include "kernels/base/deadline.h"
#include "kernels/device/progress_engine.h"

namespace agmm::transport {

// Converts a status of UCX. `what` names the failed action, in front of UCX's message.
absl::Status FromUcs(ucs_status_t status, absl::string_view what);

class UcxWorker final : public ProgressEngine {
 public:
  using Task = absl::AnyInvocable<void()>;

  // Errors: as UcxTransport::Create.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const TransportOptions& options);
  ~UcxWorker() override;

  // Ends UCX's worker, with all its connections, and makes a new one with another address. `closed`
  // runs in between; after it, no callback of earlier requests runs, and UCX does not touch their
  // memory. `over` says that UCX has no work left for them; otherwise the worker is abandoned and
  // its memory leaks, because ending it could crash the process. Progress thread only. Errors: as
  // Create; no worker exists then, and only Renew and Stop may follow.
  absl::Status Renew(bool over, const std::function<void()>& closed);

  // Runs the loop on a new thread. `busy`, called on the progress thread, returns true while
  // requests are in flight: the loop then calls UCX regularly even without an event. Errors:
  // RESOURCE_EXHAUSTED without a thread.
  absl::Status Start(std::function<bool()> busy);
  // Ends the loop when `finished`, called on the progress thread after each round, returns true,
  // and joins; returns at once without Start. A lent thread loses the seat the next time it drives
  // or polls, which it must do.
  void Stop(std::function<bool()> finished);
  // Ends UCX, which then no longer touches memory of this process. To be called after Stop.
  // Destroys the tasks that have not run, and all later ones. `over` is as in Renew.
  void Close(bool over = true);

  // Runs `task` on the progress thread, in the order of posting. Any thread; never blocks.
  void Post(Task task);
  // Runs `task` on the progress thread after `delay`. Progress thread only.
  void After(absl::Duration delay, Task task);

  bool Drive(absl::FunctionRef<bool()> done, Deadline deadline, absl::Duration spin) override;
  bool Poll() override;
  void Leave() override;
  void Wake() override;

  ucp_worker_h handle() const { return worker_; }
  // The worker's address bytes.
  const std::string& address() const { return address_; }
  // Valid while there is a worker. Progress thread only.
  HandshakeListener& listener() { return *listener_; }
  // Returns the number of connections without a valid token. Any thread.
  int64_t refused() const { return refused_; }

 private:
  explicit UcxWorker(const TransportOptions& options) : options_(options) {}
  absl::Status Open();
  absl::Status OpenWorker();
  void CloseWorker(bool over);
  void Loop();
  // Takes the seat from the own thread, which steps aside. Returns false if another lent thread has
  // it, or the worker is closing.
  bool Take();
  // Runs tasks, timers and UCX once. Returns true if any of them did something.
  bool Round();
  // Sleeps at most for `limit`.
  void Sleep(absl::Duration limit);
  // Requires mutex_.
  void WakeSleeper();

  const TransportOptions options_;
  LocalAddress local_;
  TransportCount refused_;
  std::unique_ptr<HandshakeListener> listener_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  bool left_alone_ = false;  // a worker of the context was abandoned
  std::string address_;
  int ucx_fd_ = -1;   // readable when UCX has something to do; UCX's own
  int wake_fd_ = -1;  // readable when a task was posted while the progress thread slept
  std::function<bool()> busy_;
  std::thread thread_;

  std::multimap<int64_t, Task> timers_;  // by MonotonicNanos; progress thread only
  std::vector<Task> running_;            // progress thread only

  // The progress thread must run another round before it sleeps if it was woken while awake.
  enum class Sleeper { kAwake, kWoken, kAsleep };

  std::mutex mutex_;              // guards all below
  std::condition_variable seat_;  // lent_to_ or aside_ has changed
  std::vector<Task> tasks_;
  Sleeper sleeper_ = Sleeper::kAwake;
  std::thread::id lent_to_;  // none: the own thread has the seat
  bool aside_ = false;       // the own thread waits for the seat
  bool closed_ = false;
  std::function<bool()> finished_;
};

}  // namespace agmm::transport
