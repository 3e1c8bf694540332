// Values of the library as tuples, in the order of the fields of the package's dataclasses
// (agmm/job.py, agmm/world.py, agmm/tensor.py).
#pragma once

#include <nanobind/nanobind.h>

#include "agmm/agmm.h"

namespace agmm::python {

nanobind::object FieldsOf(const TensorInfo& info);
nanobind::object FieldsOf(const JobInfo& info);
nanobind::object FieldsOf(const JobEvent& event);
nanobind::object FieldsOf(const WorldInfo& info);

template <typename T>
nanobind::object FieldsOf(const std::vector<T>& values) {
  nanobind::list list;
  for (const T& value : values) list.append(FieldsOf(value));
  return list;
}

}  // namespace agmm::python
