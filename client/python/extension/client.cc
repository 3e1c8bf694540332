#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "agmm/agmm.h"
#include "extension/await.h"
#include "extension/bindings.h"
#include "extension/callback.h"
#include "extension/connected.h"
#include "extension/fields.h"
#include "extension/files.h"
#include "extension/mapped.h"
#include "extension/outcome.h"
#include "extension/raise.h"
#include "extension/transfers.h"

namespace nb = nanobind;

namespace agmm::python {
namespace {

// Returns an object that Python owns.
Connected* Connect(std::string endpoint, bool session, std::string program, int64_t call_timeout_ms,
                   int64_t transfer_timeout_ms) {
  const ClientOptions options{.endpoint = std::move(endpoint),
                              .session = session,
                              .program = std::move(program),
                              .call_timeout = Milliseconds(call_timeout_ms),
                              .transfer_timeout = Milliseconds(transfer_timeout_ms)};
  return new Connected(ValueOf(CallAndWait([options] { return Client::Connect(options); })));
}

nb::tuple World(const Connected& self, int64_t timeout_ms) {
  return FieldsOf(ValueOf(CallAndWait(
      [client = self.client(), timeout_ms] { return client->World(Milliseconds(timeout_ms)); })));
}

nb::list Sessions(const Connected& self, int64_t timeout_ms) {
  return FieldsOf(ValueOf(CallAndWait([client = self.client(), timeout_ms] {
    return client->Sessions(Milliseconds(timeout_ms));
  })));
}

nb::tuple Fill(const Connected& self, std::string name, const TensorSpec& spec, int kind,
               uint64_t seed, double value, int64_t timeout_ms) {
  const Filling filling{.kind = Filling::Kind(kind), .seed = seed, .value = value};
  return FieldsOf(ValueOf(CallAndWait([client = self.client(), name, spec, filling, timeout_ms] {
    return client->Fill(name, spec, filling, Milliseconds(timeout_ms));
  })));
}

nb::tuple Create(const Connected& self, std::string name, const TensorSpec& spec,
                 int64_t timeout_ms) {
  return FieldsOf(ValueOf(CallAndWait([client = self.client(), name, spec, timeout_ms] {
    return client->Create(name, spec, Milliseconds(timeout_ms));
  })));
}

// Returns an object that Python owns.
Mapped* Map(const Connected& self, std::string name, bool writable, int64_t timeout_ms,
            std::stop_source stop) {
  const auto map = [client = self.client(), name, writable, timeout_ms, token = stop.get_token()] {
    Result<Mapping> mapped = client->Map(name, writable, Milliseconds(timeout_ms), token);
    // Its end alone would cost the tensor its contents.
    if (mapped.ok() && token.stop_requested()) mapped->GiveBack();
    return mapped;
  };
  Mapping mapping = ValueOf(CallAndWait(map, [&stop](auto& call) {
    std::optional<Result<Mapping>> mapped = StopAndTake(stop, call);
    const ReleasedGil released;
    if (mapped.has_value() && mapped->ok()) (*mapped)->GiveBack(kLongestCancel);
  }));
  try {
    RaiseInterrupt();
  } catch (nb::python_error&) {
    const ReleasedGil released;
    mapping.GiveBack(kLongestCancel);
    throw;
  }
  return new Mapped(std::move(mapping));
}

nb::list List(const Connected& self, int64_t timeout_ms) {
  return FieldsOf(ValueOf(CallAndWait(
      [client = self.client(), timeout_ms] { return client->List(Milliseconds(timeout_ms)); })));
}

nb::tuple Find(const Connected& self, std::string name, int64_t timeout_ms) {
  return FieldsOf(ValueOf(CallAndWait([client = self.client(), name, timeout_ms] {
    return client->Find(name, Milliseconds(timeout_ms));
  })));
}

void Delete(const Connected& self, std::string name, int64_t timeout_ms) {
  RaiseUnlessOk(CallAndWait([client = self.client(), name, timeout_ms] {
    return client->Delete(name, Milliseconds(timeout_ms));
  }));
}

JobHandle Submit(const Connected& self, const JobRequest& request, int64_t timeout_ms,
                 std::stop_source stop) {
  const auto submit = [client = self.client(), request, timeout_ms, token = stop.get_token()] {
    return client->Submit(request, Milliseconds(timeout_ms), token);
  };
  // The library cancels the job of a call that was stopped, but not of one that has ended.
  const JobHandle job = ValueOf(CallAndWait(submit, [&stop](auto& call) {
    const std::optional<Result<JobHandle>> submitted = StopAndTake(stop, call);
    if (submitted.has_value() && submitted->ok()) CancelInterrupted(**submitted);
  }));
  try {
    RaiseInterrupt();
  } catch (nb::python_error&) {
    CancelInterrupted(job);
    throw;
  }
  return job;
}

nb::tuple Run(const Connected& self, const JobRequest& request, int64_t timeout_ms) {
  const std::shared_ptr<Client> client = self.client();
  std::stop_source stop;
  if (!OnMainThread()) {
    return FieldsOf(
        ValueOf(CallAndWait([&] { return client->Run(request, Milliseconds(timeout_ms)); })));
  }
  std::future<Result<JobInfo>> future = [&] {
    const ReleasedGil released;
    return client->RunAsync(request, Milliseconds(timeout_ms), stop.get_token());
  }();
  return FieldsOf(
      ValueOf(Await(std::move(future), [&stop](auto& call) { StopAndTake(stop, call); })));
}

void RunThen(const Connected& self, const JobRequest& request, nb::callable on_end,
             int64_t timeout_ms, const std::stop_source& stop) {
  const auto callbacks = std::make_shared<Callbacks>(std::move(on_end));
  const std::shared_ptr<Client> client = self.client();
  const ReleasedGil released;
  client->Run(
      request, [callbacks](const Result<JobInfo>& job) { TellOutcome(*callbacks, job); },
      Milliseconds(timeout_ms), stop.get_token());
}

JobHandle FindJob(const Connected& self, uint64_t id, int64_t timeout_ms) {
  return ValueOf(CallAndWait([client = self.client(), id, timeout_ms] {
    return client->FindJob(id, Milliseconds(timeout_ms));
  }));
}

nb::list Jobs(const Connected& self, int limit, int64_t timeout_ms) {
  return FieldsOf(ValueOf(CallAndWait([client = self.client(), limit, timeout_ms] {
    return client->Jobs(limit, Milliseconds(timeout_ms));
  })));
}

}  // namespace

void BindClient(nb::module_& module) {
  nb::class_<Connected>(module, "Client", nb::is_weak_referenceable())
      .def_static("connect", &Connect, nb::arg("endpoint"), nb::arg("session"), nb::arg("program"),
                  nb::arg("call_timeout_ms"), nb::arg("transfer_timeout_ms"),
                  nb::call_guard<Call>())
      .def("close", &Connected::Close)
      .def(
          "close_soon",
          [](Connected& self, std::vector<std::string> tensors, int64_t timeout_ms) {
            self.CloseSoon(std::move(tensors), Milliseconds(timeout_ms));
          },
          nb::arg("tensors"), nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def_prop_ro("closed", &Connected::closed)
      .def_prop_ro("endpoint", &Connected::endpoint)
      .def_rw("advice", &Connected::advice)
      .def("world", &World, nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("sessions", &Sessions, nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("put", &Put, nb::arg("name"), nb::arg("spec"), nb::arg("pointer"), nb::arg("size_bytes"),
           nb::arg("progress").none(), nb::arg("timeout_ms"), nb::arg("stop"),
           nb::call_guard<Call>())
      .def("put_blocks", &PutBlocks, nb::arg("name"), nb::arg("spec"), nb::arg("block"),
           nb::arg("progress").none(), nb::arg("timeout_ms"), nb::arg("stop"),
           nb::call_guard<Call>())
      .def("get", &Get, nb::arg("name"), nb::arg("pointer"), nb::arg("size_bytes"),
           nb::arg("progress").none(), nb::arg("timeout_ms"), nb::arg("stop"),
           nb::call_guard<Call>())
      .def("get_blocks", &GetBlocks, nb::arg("name"), nb::arg("block"), nb::arg("progress").none(),
           nb::arg("timeout_ms"), nb::arg("stop"), nb::call_guard<Call>())
      .def("fill", &Fill, nb::arg("name"), nb::arg("spec"), nb::arg("kind"), nb::arg("seed"),
           nb::arg("value"), nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("create", &Create, nb::arg("name"), nb::arg("spec"), nb::arg("timeout_ms"),
           nb::call_guard<Call>())
      .def("map", &Map, nb::arg("name"), nb::arg("writable"), nb::arg("timeout_ms"),
           nb::arg("stop"), nb::call_guard<Call>())
      .def("tensors", &List, nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("find", &Find, nb::arg("name"), nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("delete", &Delete, nb::arg("name"), nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("submit", &Submit, nb::arg("request"), nb::arg("timeout_ms"), nb::arg("stop"),
           nb::call_guard<Call>())
      .def("run", &Run, nb::arg("request"), nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("run_then", &RunThen, nb::arg("request"), nb::arg("on_end"), nb::arg("timeout_ms"),
           nb::arg("stop"), nb::call_guard<Call>())
      .def("load", &Load, nb::arg("path"), nb::arg("rules"), nb::arg("strict"),
           nb::arg("progress").none(), nb::arg("timeout_ms"), nb::arg("stop"),
           nb::call_guard<Call>())
      .def("save", &Save, nb::arg("path"), nb::arg("names"), nb::arg("metadata"),
           nb::arg("progress").none(), nb::arg("timeout_ms"), nb::arg("stop"),
           nb::call_guard<Call>())
      .def("find_job", &FindJob, nb::arg("id"), nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("jobs", &Jobs, nb::arg("limit"), nb::arg("timeout_ms"), nb::call_guard<Call>());
}

}  // namespace agmm::python
