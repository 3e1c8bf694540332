// Ctrl-C, SIGTERM and SIGHUP: the first asks the work to stop, the second ends the process at once.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

namespace agmm {

// One at a time in a process.
class Interrupt {
 public:
  // Runs `on_first`, on a thread of its own, at the first signal.
  explicit Interrupt(std::function<void()> on_first);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

 private:
  struct sigaction old_int_, old_term_, old_hup_;
  int read_fd_;
  std::thread thread_;
};

}  // namespace agmm
