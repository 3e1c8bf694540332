// The classes of the extension, each bound by a file of its own.
#pragma once

#include <nanobind/nanobind.h>

namespace agmm::python {

void BindStop(nanobind::module_& module);
void BindRequests(nanobind::module_& module);
void BindClient(nanobind::module_& module);
void BindFiles(nanobind::module_& module);
void BindJob(nanobind::module_& module);
void BindMapping(nanobind::module_& module);

}  // namespace agmm::python
