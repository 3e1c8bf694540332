// Requests to end transfers and runs.
#include <nanobind/nanobind.h>

#include <stop_token>

#include "extension/bindings.h"
#include "extension/gil.h"

namespace nb = nanobind;

namespace agmm::python {

void BindStop(nb::module_& module) {
  nb::class_<std::stop_source>(module, "Stop")
      .def(nb::init<>())
      .def("request", [](std::stop_source& self) {
        if (Ended()) return;
        const ReleasedGil released;
        self.request_stop();
      });
}

}  // namespace agmm::python
