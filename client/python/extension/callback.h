// Callables of Python that threads of the library call.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "agmm/agmm.h"
#include "extension/gil.h"

namespace agmm::python {

// Callables that are called until End, which drops them: threads of the library, which may keep
// this object longer, must not drop the last reference to their own client. The first exception
// that a callable raises is kept.
class Callbacks {
 public:
  // Requires the GIL.
  explicit Callbacks(nanobind::object callables) : callables_(std::move(callables)) {}
  ~Callbacks();
  Callbacks(const Callbacks&) = delete;

  // Takes the GIL and runs `call` with the callables. Returns false, without a call, after an
  // exception or the end.
  bool Run(const std::function<void(nanobind::handle callables)>& call);
  // Drops the callables and the exception. Takes the GIL.
  void End();
  // Raises the exception of a callable, if any. Requires the GIL.
  void RaiseAny();

 private:
  nanobind::object callables_;
  std::exception_ptr error_;  // guarded by the GIL, like callables_
};

}  // namespace agmm::python
