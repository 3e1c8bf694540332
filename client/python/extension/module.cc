// The extension agmm._agmm: the C++ library for the Python code of the package, which users import.
#include <nanobind/nanobind.h>

#include "agmm/agmm.h"

namespace nb = nanobind;

NB_MODULE(_agmm, module) {
  module.def("bytes_of", [](int type) { return agmm::BytesOf(agmm::ElementType(type)); });
}
