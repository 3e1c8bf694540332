// Ctrl-C, SIGTERM and SIGHUP: the first signal interrupts the calls of a connection, the second
// ends the process.
#pragma once

#include <signal.h>

#include <array>
#include <thread>

#include "client/connect/connection.h"

namespace agmm {

// A process has at most one at a time.
class Interrupt {
 public:
  explicit Interrupt(Connection* connection);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Returns true if a signal has come.
  bool happened() const;

 private:
  std::array<struct sigaction, 3> old_;  // of kSignals
  std::thread thread_;
};

}  // namespace agmm
