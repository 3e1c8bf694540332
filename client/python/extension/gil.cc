#include "extension/gil.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
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

std::atomic<int> threads = 0;  // without the GIL, that will take it

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
    --threads;
    lock.lock();
  }
}

// By address; guarded by the GIL.
std::map<const Client*, std::weak_ptr<Client>>& Clients() {
  static auto* const clients = new std::map<const Client*, std::weak_ptr<Client>>;
  return *clients;
}

// Closes all clients, which ends calls in progress, and waits until no thread is in such a call.
void End() {
  std::map<const Client*, std::weak_ptr<Client>> clients;
  clients.swap(Clients());
  nb::gil_scoped_release released;
  for (const auto& [address, client] : clients)
    if (const std::shared_ptr<Client> alive = client.lock()) alive->Close();
  const auto end = std::chrono::steady_clock::now() + kLongestEnd;
  while (threads.load() > 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kPoll);
}

}  // namespace

ReleasedGil::ReleasedGil() : state_((++threads, PyEval_SaveThread())) {}

ReleasedGil::~ReleasedGil() {
  PyEval_RestoreThread(state_);
  --threads;
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
  ++threads;
  own->works.push_back(std::move(work));
  own->changed.notify_one();
  return Status();
}

bool& InCallback() {
  thread_local bool in_callback = false;
  return in_callback;
}

void Remember(const std::shared_ptr<Client>& client) { Clients()[client.get()] = client; }

void Forget(const Client* client) { Clients().erase(client); }

void RegisterEnd(nb::module_& module) {
  module.def("in_callback", [] { return InCallback(); });
  module.def("_end", &End);
  nb::module_::import_("atexit").attr("register")(module.attr("_end"));
  // The threads of the parent do not exist in a child.
  module.def("_forked", [] {
    threads = 0;
    workers = new Workers;
  });
  nb::module_::import_("os").attr("register_at_fork")(nb::arg("after_in_child") =
                                                          module.attr("_forked"));
}

}  // namespace agmm::python
