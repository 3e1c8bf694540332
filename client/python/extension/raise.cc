#include "extension/raise.h"

namespace nb = nanobind;

namespace agmm::python {

nb::object ExceptionOf(const Status& error) {
  return nb::module_::import_("agmm.errors")
      .attr("from_status")(static_cast<int>(error.code()), error.message().c_str(),
                           error.reason().c_str());
}

void Raise(const Status& error) {
  const nb::object exception = ExceptionOf(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void RaiseUnlessOk(const Status& status) {
  if (!status.ok()) Raise(status);
}

}  // namespace agmm::python
