// Errors of the library as exceptions of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "agmm/agmm.h"

namespace agmm::python {

// Returns the exception that stands for `error`: an instance of a class of agmm.errors.
nanobind::object ExceptionOf(const Status& error);
// Raises it.
[[noreturn]] void Raise(const Status& error);
void RaiseUnlessOk(const Status& status);

template <typename T>
T ValueOf(Result<T> result) {
  RaiseUnlessOk(result.status());
  return *std::move(result);
}

}  // namespace agmm::python
