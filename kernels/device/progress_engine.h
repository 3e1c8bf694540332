// The seat of the one thread that drives a transport.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace agmm {

// A transport is driven by a thread of its own, or by one of a device's that waits and lends
// itself. The second spares each message two switches between threads, which on a host with one
// core are most of its latency. One thread at a time has the seat; the transport's own has it
// whenever nobody else does.
class ProgressEngine {
 public:
  virtual ~ProgressEngine() = default;

  // Takes the seat and drives, sleeping while nothing happens, until `done` says so or `deadline`
  // has passed. `done` is asked after whatever happened and after Wake. Looks on for `spin` after
  // the last thing that happened before it sleeps. The caller keeps the seat: it must Poll often,
  // or Leave. False at once, and without the seat, where another has lent itself or the transport
  // is closing.
  virtual bool Drive(absl::FunctionRef<bool()> done, absl::Time deadline, absl::Duration spin) = 0;

  // With the seat: does what there is to do now, without sleeping. False if the seat is gone, for
  // the transport is closing.
  virtual bool Poll() = 0;

  // Gives up the seat.
  virtual void Leave() = 0;

  // Any thread, any time: has a Drive that sleeps ask `done`.
  virtual void Wake() = 0;
};

}  // namespace agmm
