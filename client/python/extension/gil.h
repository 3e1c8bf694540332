// The GIL around calls that wait, and the end of the interpreter.
//
// A thread that takes the GIL after the interpreter has ended does not return (Python 3.14) or is
// unwound (before), which C++ does not survive. The end therefore waits for the calls in progress,
// for a limited time; threads that come later raise, or stay where they are.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "agmm/agmm.h"

namespace agmm::python {

// Guards a call from Python that may wait or run Python's code. The interpreter does not end
// meanwhile. Raises FAILED_PRECONDITION once its end has begun. Requires the GIL.
class Call {
 public:
  Call();
  ~Call();
  Call(const Call&) = delete;
};

// Releases the GIL for its life. The interpreter does not end meanwhile.
class ReleasedGil {
 public:
  ReleasedGil();
  ~ReleasedGil();
  ReleasedGil(const ReleasedGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Takes the GIL for its life, unless the interpreter has ended.
class TakenGil {
 public:
  TakenGil();
  TakenGil(const TakenGil&) = delete;

  bool is_valid() const { return acquired_.has_value() && acquired_->is_valid(); }

 private:
  std::optional<nanobind::gil_scoped_acquire> acquired_;
};

// Never returns.
[[noreturn]] void StayForever();

// Runs `work` on another thread, without the GIL, before the interpreter ends. To be called in a
// Call, or with a ReleasedGil. Threads are kept for later work, because on a busy machine a new one
// may start late. Errors: RESOURCE_EXHAUSTED.
Status Detach(std::function<void()> work);

// True while this thread runs a callback from the library. Such a callback must not close a client.
bool& InCallback();

// Sets InCallback() for its life.
class CallbackScope {
 public:
  CallbackScope() : outer_(std::exchange(InCallback(), true)) {}
  ~CallbackScope() { InCallback() = outer_; }
  CallbackScope(const CallbackScope&) = delete;

 private:
  const bool outer_;
};

// True once the end of the interpreter has begun, which closes all clients.
bool Ended();
// Keeps `client` in the list of clients that the interpreter's end closes. Require the GIL.
void Remember(const std::shared_ptr<Client>& client);
void Forget(const Client* client);

// Registers the end of the clients with the interpreter, and the reset in forked children.
void RegisterEnd(nanobind::module_& module);

}  // namespace agmm::python
