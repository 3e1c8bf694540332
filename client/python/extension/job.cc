#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "agmm/agmm.h"
#include "extension/await.h"
#include "extension/bindings.h"
#include "extension/callback.h"
#include "extension/fields.h"
#include "extension/outcome.h"
#include "extension/raise.h"

namespace nb = nanobind;

namespace agmm::python {
namespace {

nb::tuple Wait(const JobHandle& self, int64_t timeout_ms) {
  if (!OnMainThread()) {
    return FieldsOf(ValueOf(CallAndWait([&] { return self.Wait(Milliseconds(timeout_ms)); })));
  }
  std::future<Result<JobInfo>> future = [&] {
    const ReleasedGil released;
    return self.Done(Milliseconds(timeout_ms));
  }();
  return FieldsOf(ValueOf(Await(std::move(future), [&](auto&) { CancelInterrupted(self); })));
}

void Then(const JobHandle& self, nb::callable on_end, int64_t timeout_ms) {
  const auto callbacks = std::make_shared<Callbacks>(std::move(on_end));
  const ReleasedGil released;
  self.Then([callbacks](const Result<JobInfo>& job) { TellOutcome(*callbacks, job); },
            Milliseconds(timeout_ms));
}

void Watch(const JobHandle& self, nb::callable on_event, nb::callable on_end, int64_t after_event,
           int64_t timeout_ms) {
  const auto callbacks = std::make_shared<Callbacks>(nb::make_tuple(on_event, on_end));
  const ReleasedGil released;
  self.Watch(
      [callbacks](const JobEvent& event) {
        bool more = false;
        callbacks->Run([&](nb::handle callables) {
          const nb::object on_event = callables[0];
          try {
            more = nb::cast<bool>(on_event(FieldsOf(event)));
          } catch (nb::python_error& raised) {
            raised.discard_as_unraisable(on_event);
          }
        });
        return more;
      },
      [callbacks](const Result<JobInfo>& job) { TellOutcome(*callbacks, job, /*index=*/1); },
      after_event, Milliseconds(timeout_ms));
}

nb::tuple Info(const JobHandle& self, int64_t timeout_ms) {
  return FieldsOf(
      ValueOf(CallAndWait([self, timeout_ms] { return self.Info(Milliseconds(timeout_ms)); })));
}

std::string Trace(const JobHandle& self, int64_t timeout_ms) {
  return ValueOf(CallAndWait([self, timeout_ms] { return self.Trace(Milliseconds(timeout_ms)); }));
}

void Cancel(const JobHandle& self, int64_t timeout_ms) {
  RaiseUnlessOk(CallAndWait([self, timeout_ms] { return self.Cancel(Milliseconds(timeout_ms)); }));
}

}  // namespace

void BindJob(nb::module_& module) {
  nb::class_<JobHandle>(module, "Job")
      .def_prop_ro("id", &JobHandle::id)
      .def("wait", &Wait, nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("then", &Then, nb::arg("on_end"), nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("watch", &Watch, nb::arg("on_event"), nb::arg("on_end"), nb::arg("after_event"),
           nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("info", &Info, nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("trace", &Trace, nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("cancel", &Cancel, nb::arg("timeout_ms"), nb::call_guard<Call>());
}

}  // namespace agmm::python
