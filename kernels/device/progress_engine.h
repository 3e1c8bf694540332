// The seat of the single thread that drives a transport.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "kernels/base/deadline.h"

namespace agmm {

// A transport is driven by a thread of its own, or by a waiting thread that a device lends. A lent
// thread saves two thread switches per message, which are most of its latency on a host with one
// core. One thread at a time has the seat, by default the transport's own thread.
class ProgressEngine {
 public:
  virtual ~ProgressEngine() = default;

  // Takes the seat and drives until `done` returns true or `deadline` has passed. Calls `done`
  // after every event and after Wake. Sleeps after `spin` without an event. The caller keeps the
  // seat: it must Poll often, or Leave. Returns false at once, without the seat, if another lent
  // thread has it or the transport is closing.
  virtual bool Drive(absl::FunctionRef<bool()> done, Deadline deadline, absl::Duration spin) = 0;

  // Requires the seat. Handles pending events without sleeping. Returns false if the seat was lost
  // because the transport is closing.
  virtual bool Poll() = 0;

  // Leaves the seat to the transport's own thread.
  virtual void Leave() = 0;

  // Makes a sleeping Drive call `done`. May be called on any thread, at any time.
  virtual void Wake() = 0;
};

}  // namespace agmm
