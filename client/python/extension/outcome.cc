#include "extension/outcome.h"

#include "extension/fields.h"
#include "extension/raise.h"

namespace nb = nanobind;

namespace agmm::python {

void TellOutcome(Callbacks& callbacks, const Result<JobInfo>& job, int index) {
  const CallbackScope scope;
  callbacks.Run([&](nb::handle callables) {
    nb::object fields = nb::none();
    nb::object error = nb::none();
    try {
      if (job.ok()) {
        fields = FieldsOf(*job);
      } else {
        error = ExceptionOf(job.status());
      }
    } catch (const nb::python_error& raised) {
      error = nb::borrow(raised.value());
    }
    const nb::object on_end = index < 0 ? nb::borrow(callables) : nb::object(callables[index]);
    try {
      on_end(fields, error);
    } catch (nb::python_error& raised) {
      raised.discard_as_unraisable(on_end);
    }
  });
  callbacks.End();
}

}  // namespace agmm::python
