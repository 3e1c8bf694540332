// The GIL around calls that wait, and the end of the interpreter.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <mutex>

#include "agmm/agmm.h"

namespace agmm::python {

// Releases the GIL for its life. The interpreter does not end meanwhile, because a thread that
// takes the GIL after that end would not return.
class ReleasedGil {
 public:
  ReleasedGil();
  ~ReleasedGil();
  ReleasedGil(const ReleasedGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Runs `work` on another thread, without the GIL, before the interpreter ends. Threads are kept for
// later work, because on a busy machine a new one may start late. Errors: RESOURCE_EXHAUSTED.
Status Detach(std::function<void()> work);

// True while this thread runs a callback from the library. Such a callback must not close a client.
bool& InCallback();

// Keeps `client` in the list of clients that the interpreter's end closes. Require the GIL.
void Remember(const std::shared_ptr<Client>& client);
void Forget(const Client* client);

// Registers the end of the clients with the interpreter, and the reset in forked children.
void RegisterEnd(nanobind::module_& module);

}  // namespace agmm::python
