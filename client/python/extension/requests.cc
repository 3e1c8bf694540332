// The arguments of calls: specs of tensors, and jobs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "agmm/agmm.h"
#include "extension/bindings.h"

namespace nb = nanobind;

namespace agmm::python {

void BindRequests(nb::module_& module) {
  nb::class_<TensorSpec>(module, "TensorSpec")
      .def(
          "__init__",
          [](TensorSpec* self, int64_t rows, int64_t cols, int type, std::string sharding,
             std::string mesh, std::vector<int> ranks) {
            new (self) TensorSpec{rows,
                                  cols,
                                  ElementType(type),
                                  std::move(sharding),
                                  std::move(mesh),
                                  std::move(ranks)};
          },
          nb::arg("rows"), nb::arg("cols"), nb::arg("type"), nb::arg("sharding"), nb::arg("mesh"),
          nb::arg("ranks"));
  nb::class_<JobRequest>(module, "JobRequest")
      .def(nb::init<>())
      .def_rw("spec", &JobRequest::spec)
      .def_rw("a", &JobRequest::a)
      .def_rw("b", &JobRequest::b)
      .def_rw("c", &JobRequest::c)
      .def_rw("tensors", &JobRequest::tensors)
      .def_rw("mesh", &JobRequest::mesh)
      .def_rw("ranks", &JobRequest::ranks)
      .def_rw("algorithm", &JobRequest::algorithm)
      .def_rw("split", &JobRequest::split)
      .def_rw("chunk_count", &JobRequest::chunk_count)
      .def_rw("k_chunk_count", &JobRequest::k_chunk_count)
      .def_rw("workspace_shard_count", &JobRequest::workspace_shard_count)
      .def_rw("carried", &JobRequest::carried)
      .def_prop_rw(
          "partials", [](const JobRequest& self) { return static_cast<int>(self.partials); },
          [](JobRequest& self, int type) { self.partials = ElementType(type); })
      .def_rw("repeat_count", &JobRequest::repeat_count)
      .def_prop_rw(
          "timeout_ms", [](const JobRequest& self) { return self.timeout.count(); },
          [](JobRequest& self, int64_t timeout_ms) { self.timeout = Milliseconds(timeout_ms); })
      .def_rw("ignore_tuning", &JobRequest::ignore_tuning);
}

}  // namespace agmm::python
