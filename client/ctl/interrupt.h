// Ctrl-C, SIGTERM and SIGHUP: while an Interrupt exists, the first signal interrupts the calls of
// its connection, and the second ends the process. At other times a signal ends the process.
// Signals that are ignored when the program starts stay ignored.
#pragma once

#include "client/connect/connection.h"

namespace agmm {

// Lets one thread take the signals. Runs before any other thread starts, because all threads
// inherit the mask. If the thread cannot start, each signal ends the process.
void WatchSignals();

// A process has at most one at a time.
class Interrupt {
 public:
  explicit Interrupt(Connection* connection);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Returns true if a signal has come.
  bool happened() const;
};

}  // namespace agmm
