// Waits that signals interrupt. Python runs handlers of signals in its main thread alone, between
// two of its instructions, so a wait there must end now and then.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "agmm/agmm.h"
#include "extension/gil.h"
#include "extension/raise.h"

namespace agmm::python {

// Between two looks at the signals: a wait that a person would not notice.
inline constexpr auto kSlice = std::chrono::milliseconds(20);

// Linux's main thread is Python's.
inline bool OnMainThread() { return gettid() == getpid(); }

// Waits, without the GIL, until `ready(kSlice)` returns true. Throws, with the GIL, if the handler
// of a signal raises.
template <typename Ready>
void AwaitReady(Ready ready) {
  const bool on_main_thread = OnMainThread();
  while (true) {
    {
      const ReleasedGil released;
      do {
        if (ready(kSlice)) return;
      } while (!on_main_thread);
    }
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

// Waits for `future`. If the handler of a signal raises, calls `interrupt(future)` first, with the
// GIL.
template <typename T, typename Interrupt>
T Await(std::future<T> future, Interrupt interrupt) {
  const auto ready = [&](auto slice) {
    return future.wait_for(slice) == std::future_status::ready;
  };
  try {
    AwaitReady(ready);
  } catch (nanobind::python_error&) {
    interrupt(future);
    throw;
  }
  return future.get();
}

// Runs `call`, which waits, without the GIL. In the main thread another thread runs it, so that
// signals interrupt the wait, as in Await.
template <typename Call, typename Interrupt>
auto CallAndWait(Call call, Interrupt interrupt) -> decltype(call()) {
  using Value = decltype(call());
  if (!OnMainThread()) {
    const ReleasedGil released;
    return call();
  }
  auto promise = std::make_shared<std::promise<Value>>();
  std::future<Value> future = promise->get_future();
  RaiseUnlessOk(Detach([promise, call = std::move(call)] { promise->set_value(call()); }));
  return Await(std::move(future), interrupt);
}

// After an interrupt the call goes on, and its result is dropped: `call` owns all that it uses.
template <typename Call>
auto CallAndWait(Call call) -> decltype(call()) {
  return CallAndWait(std::move(call), [](auto&) {});
}

}  // namespace agmm::python
