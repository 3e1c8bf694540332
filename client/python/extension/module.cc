// The extension agmm._agmm: the C++ library for the Python code of the package, which users import.
// Times are in milliseconds; zero stands for the client's. Types, states and kinds are the numbers
// of the library's enums. Errors raise the exceptions of agmm.errors.
#include <nanobind/nanobind.h>

#include "extension/bindings.h"
#include "extension/gil.h"

NB_MODULE(_agmm, module) {
  // A program may end with threads in calls, which then keep their objects.
  nanobind::set_leak_warnings(false);
  module.def("version", [] { return AGMM_PYTHON_VERSION; });
  agmm::python::BindStop(module);
  agmm::python::BindRequests(module);
  agmm::python::BindFiles(module);
  agmm::python::BindClient(module);
  agmm::python::BindJob(module);
  agmm::python::BindMapping(module);
  agmm::python::RegisterEnd(module);
}
