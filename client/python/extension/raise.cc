#include "extension/raise.h"

namespace nb = nanobind;

namespace agmm::python {

nb::object ExceptionOf(const Status& error) {
  // A path in it need not be UTF-8.
  const nb::object message = nb::steal(PyUnicode_DecodeUTF8(
      error.message().data(), static_cast<Py_ssize_t>(error.message().size()), "backslashreplace"));
  if (!message.is_valid()) throw nb::python_error();
  return nb::module_::import_("agmm.errors")
      .attr("from_status")(static_cast<int>(error.code()), message, error.reason().c_str());
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
