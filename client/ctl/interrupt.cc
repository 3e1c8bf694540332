#include "client/ctl/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <mutex>
#include <thread>

#include "client/ctl/exit_code.h"
#include "kernels/base/thread.h"

namespace agmm {
namespace {

// State shared by the thread that takes the signals and the current Interrupt.
struct Watch {
  std::mutex mutex;
  Connection* connection = nullptr;
  int signal_count = 0;  // since this connection came
};

// Lives as long as the thread, which runs until the process ends.
Watch& TheWatch() {
  static Watch* const watch = new Watch;
  return *watch;
}

// A signal that the process was started to ignore stays ignored: nohup ignores SIGHUP, and scripts
// ignore SIGINT in programs that they start in the background.
sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN)
      sigaddset(&signals, signal);
  }
  return signals;
}

// Does what the signal would have done without this thread.
void EndBy(int signal) {
  ::signal(signal, SIG_DFL);
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  raise(signal);
}

// sigwait instead of a handler: a handler runs on any thread, which may hold a lock, and the thread
// sanitizer delays it for as long as that thread waits.
[[noreturn]] void TakeSignals() {
  const sigset_t signals = Signals();
  for (;;) {
    int signal = 0;
    sigwait(&signals, &signal);
    Watch& watch = TheWatch();
    std::lock_guard lock(watch.mutex);
    if (watch.connection == nullptr) EndBy(signal);
    if (++watch.signal_count > 1) _exit(ExitCode(absl::StatusCode::kCancelled));
    watch.connection->Interrupt();
  }
}

}  // namespace

void WatchSignals() {
  TheWatch();
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  absl::StatusOr<std::thread> thread = StartThread("signals", TakeSignals);
  if (thread.ok())
    thread->detach();
  else
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

Interrupt::Interrupt(Connection* connection) {
  Watch& watch = TheWatch();
  std::lock_guard lock(watch.mutex);
  watch.connection = connection;
  watch.signal_count = 0;
}

Interrupt::~Interrupt() {
  Watch& watch = TheWatch();
  std::lock_guard lock(watch.mutex);
  watch.connection = nullptr;
}

bool Interrupt::happened() const {
  Watch& watch = TheWatch();
  std::lock_guard lock(watch.mutex);
  return watch.signal_count > 0;
}

}  // namespace agmm
