#include "client/ctl/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "client/ctl/exit_code.h"

namespace agmm {
namespace {

constexpr char kSignal = 's', kQuit = 'q';

// What a signal handler may touch.
std::atomic<int> write_fd{-1};
std::atomic<int> signals{0};
static_assert(std::atomic<int>::is_always_lock_free);

// The pipe is written twice at most: it has room.
void Tell(char what) {
  while (write(write_fd.load(), &what, 1) < 0 && errno == EINTR) {
  }
}

void OnSignal(int) {
  const int saved = errno;
  if (signals.fetch_add(1) > 0) _exit(ExitCode(absl::StatusCode::kCancelled));
  Tell(kSignal);
  errno = saved;
}

}  // namespace

Interrupt::Interrupt(std::function<void()> on_first) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    // Out of files: signals keep their default, which ends the process and with it the session.
    read_fd_ = -1;
    return;
  }
  read_fd_ = fds[0];
  write_fd = fds[1];
  signals = 0;
  thread_ = std::thread([fd = read_fd_, on_first = std::move(on_first)] {
    char what = kQuit;
    while (read(fd, &what, 1) < 0 && errno == EINTR) {
    }
    if (what == kSignal) on_first();
  });
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
  sigaction(SIGHUP, &action, &old_hup_);
}

Interrupt::~Interrupt() {
  if (read_fd_ < 0) return;
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGHUP, &old_hup_, nullptr);
  Tell(kQuit);
  thread_.join();
  close(write_fd.exchange(-1));
  close(read_fd_);
}

}  // namespace agmm
