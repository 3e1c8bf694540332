#include "extension/gil.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace nb = nanobind;

namespace agmm::python {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(1);
// Calls of closed clients end at once. A callback of the user that blocks holds up the end no
// longer than this.
constexpr auto kLongestEnd = std::chrono::seconds(10);

std::atomic<int> calls = 0;         // that the end waits for
std::atomic<int> takers = 0;        // threads that are about to take the GIL
std::atomic<bool> ended = false;    // set with the GIL: no call begins
std::atomic<bool> closing = false;  // set without it: no thread takes the GIL

struct Workers {
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<std::function<void()>> works;  // not yet begun
  size_t idle = 0;                          // threads
};

// Never destroyed, because its threads end with the process.
Workers* workers = new Workers;

void Work(Workers* own) {
  std::unique_lock lock(own->mutex);
  while (true) {
    ++own->idle;
    own->changed.wait(lock, [own] { return !own->works.empty(); });
    --own->idle;
    std::function<void()> work = std::move(own->works.front());
    own->works.pop_front();
    lock.unlock();
    std::exchange(work, nullptr)();
    --calls;
    lock.lock();
  }
}

// By address; guarded by the GIL.
std::map<const Client*, std::weak_ptr<Client>>& Clients() {
  static auto* const clients = new std::map<const Client*, std::weak_ptr<Client>>;
  return *clients;
}

// The exception of calls that begin after the end has.
PyObject* late_error = nullptr;

// Makes late_error without its Python code, which calls must not run then: a switch of threads
// there would end them in the middle of C++.
void MakeLateError() {
  const nb::object type = nb::module_::import_("agmm.errors").attr("FailedPrecondition");
  nb::object error = type.attr("__new__")(
      type, "the interpreter is ending, which has closed all clients; make the call before");
  error.attr("reason") = "";
  late_error = error.release().ptr();
}

// Calls `take`, which takes the GIL, unless the interpreter has ended; returns false then.
template <typename Take>
bool TakeGil(const Take& take) {
  ++takers;
  const bool allowed = !closing;
  if (allowed) take();
  --takers;
  return allowed;
}

// Without a thread, the end of the process closes the client.
void CloseSoon(const std::shared_ptr<Client>& client) {
  static_cast<void>(Detach([client] { client->Close(); }));
}

// Closes all clients, which ends calls in progress, and waits for these.
void End() {
  MakeLateError();
  ended = true;
  std::map<const Client*, std::weak_ptr<Client>> clients;
  clients.swap(Clients());
  PyThreadState* const state = PyEval_SaveThread();
  for (const auto& [address, client] : clients)
    if (const std::shared_ptr<Client> alive = client.lock()) CloseSoon(alive);
  const auto end = std::chrono::steady_clock::now() + kLongestEnd;
  while (calls > 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kPoll);
  closing = true;
  while (takers > 0) std::this_thread::sleep_for(kPoll);
  PyEval_RestoreThread(state);
}

}  // namespace

Call::Call() {
  if (ended) {
    // Else it would gather the frames of all calls, and what they were handling.
    PyException_SetTraceback(late_error, Py_None);
    PyException_SetContext(late_error, nullptr);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(late_error)), late_error);
    throw nb::python_error();
  }
  ++calls;
}

Call::~Call() { --calls; }

ReleasedGil::ReleasedGil() : state_((++calls, PyEval_SaveThread())) {}

ReleasedGil::~ReleasedGil() {
  if (!TakeGil([this] { PyEval_RestoreThread(state_); })) StayForever();
  --calls;
}

TakenGil::TakenGil() {
  TakeGil([this] { acquired_.emplace(); });
}

void StayForever() {
  while (true) pause();
}

Status Detach(std::function<void()> work) {
  Workers* const own = workers;
  std::lock_guard lock(own->mutex);
  if (own->idle <= own->works.size()) {
    try {
      std::thread([own] { Work(own); }).detach();
    } catch (const std::system_error& error) {
      return Status(StatusCode::kResourceExhausted,
                    std::string("no thread can be started: ") + error.what());
    }
  }
  ++calls;
  own->works.push_back(std::move(work));
  own->changed.notify_one();
  return Status();
}

bool& InCallback() {
  thread_local bool in_callback = false;
  return in_callback;
}

bool Ended() { return ended; }

void Remember(const std::shared_ptr<Client>& client) {
  if (ended) return CloseSoon(client);  // its call was in progress when the end began
  Clients()[client.get()] = client;
}

void Forget(const Client* client) { Clients().erase(client); }

void RegisterEnd(nb::module_& module) {
  module.def("in_callback", [] { return InCallback(); });
  module.def("_end", &End);
  nb::module_::import_("atexit").attr("register")(module.attr("_end"));
  // The threads of the parent do not exist in a child.
  module.def("_forked", [] {
    calls = takers = 0;
    workers = new Workers;
  });
  nb::module_::import_("os").attr("register_at_fork")(nb::arg("after_in_child") =
                                                          module.attr("_forked"));
}

}  // namespace agmm::python
