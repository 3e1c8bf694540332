// Values of the library as tuples, in the order of the fields of the package's dataclasses
// (agmm/job_info.py, agmm/session_info.py, agmm/tensor.py, agmm/world_info.py).
#pragma once

#include <nanobind/nanobind.h>

#include "agmm/agmm.h"

namespace agmm::python {

nanobind::tuple FieldsOf(const TensorInfo& info);
nanobind::tuple FieldsOf(const JobInfo& info);
nanobind::tuple FieldsOf(const JobEvent& event);
nanobind::tuple FieldsOf(const WorldInfo& info);
nanobind::tuple FieldsOf(const SessionInfo& info);
nanobind::tuple FieldsOf(const LoadedFile& file);

template <typename T>
nanobind::list FieldsOf(const std::vector<T>& values) {
  nanobind::list list;
  for (const T& value : values) list.append(FieldsOf(value));
  return list;
}

}  // namespace agmm::python
