#include "client/ctl/interrupt.h"

#include <semaphore.h>
#include <unistd.h>

#include <atomic>

#include "client/ctl/exit_code.h"
#include "kernels/base/thread.h"

namespace agmm {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};

std::atomic<int> signals{0};
static_assert(std::atomic<int>::is_always_lock_free);  // because the signal handler uses it
sem_t changed;  // raised by a signal, and at the end; a signal handler may raise it

void OnSignal(int) {
  if (signals.fetch_add(1) > 0) _exit(ExitCode(absl::StatusCode::kCancelled));
  sem_post(&changed);
}

}  // namespace

Interrupt::Interrupt(Connection* connection) {
  signals = 0;
  sem_init(&changed, /*pshared=*/0, /*value=*/0);
  absl::StatusOr<std::thread> thread = StartThread("signals", [connection] {
    while (sem_wait(&changed) != 0) {  // a signal interrupts it
    }
    if (signals > 0) connection->Interrupt();
  });
  // Without a thread, the first signal ends the process.
  if (!thread.ok()) return;
  thread_ = *std::move(thread);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &old_[i]);
}

Interrupt::~Interrupt() {
  if (!thread_.joinable()) return;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
  sem_post(&changed);
  thread_.join();
  // `changed` is not destroyed, because a handler may still run on another thread.
}

bool Interrupt::happened() const { return signals > 0; }

}  // namespace agmm
