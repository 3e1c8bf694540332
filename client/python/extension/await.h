// Waits that signals interrupt. Python runs handlers of signals in its main thread alone, between
// two of its instructions, so a wait there must end now and then.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "agmm/agmm.h"
#include "extension/gil.h"
#include "extension/raise.h"

namespace agmm::python {

// Between two looks at the signals: a wait that a person would not notice.
inline constexpr auto kSlice = std::chrono::milliseconds(20);

// Linux's main thread is Python's.
inline bool OnMainThread() { return gettid() == getpid(); }

// After an interrupt: the longest wait for the end of what it cancels.
inline constexpr Milliseconds kLongestCancel{2000};

// Throws if the handler of a signal raises. Requires the GIL.
inline void RaiseInterrupt() {
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

// Waits, without the GIL, until `future` is ready; in the main thread, no longer than `longest`.
// Throws, with the GIL, if the handler of a signal raises.
template <typename T>
void AwaitReady(const std::future<T>& future,
                std::chrono::nanoseconds longest = std::chrono::nanoseconds::max()) {
  if (!OnMainThread()) {
    const ReleasedGil released;
    return future.wait();
  }
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < longest) {
    {
      const ReleasedGil released;
      if (future.wait_for(kSlice) == std::future_status::ready) return;
    }
    RaiseInterrupt();
  }
}

// Waits for `future`. If the handler of a signal raises, calls `interrupt(future)` first, with the
// GIL.
template <typename T, typename Interrupt>
T Await(std::future<T> future, Interrupt interrupt) {
  try {
    AwaitReady(future);
  } catch (nanobind::python_error&) {
    interrupt(future);
    throw;
  }
  return future.get();
}

// Runs `work` on another thread. Errors, in the future: RESOURCE_EXHAUSTED.
template <typename Work>
auto OnThread(Work work) {
  using Value = decltype(work());
  auto promise = std::make_shared<std::promise<Value>>();
  std::future<Value> future = promise->get_future();
  const Status started = Detach([promise, work = std::move(work)] { promise->set_value(work()); });
  if (!started.ok()) promise->set_value(started);
  return future;
}

// Runs `work`, which waits, without the GIL. In the main thread another thread runs it, so that
// signals interrupt the wait, as in Await.
template <typename Work, typename Interrupt>
auto CallAndWait(Work work, Interrupt interrupt) -> decltype(work()) {
  if (!OnMainThread()) {
    const ReleasedGil released;
    return work();
  }
  return Await(OnThread(std::move(work)), interrupt);
}

// After an interrupt the work goes on, and its result is dropped: `work` owns all that it uses.
template <typename Work>
auto CallAndWait(Work work) -> decltype(work()) {
  return CallAndWait(std::move(work), [](auto&) {});
}

// Stops a call after an interrupt. Returns its result, unless a daemon that does not answer delays
// it beyond kLongestCancel.
template <typename T>
std::optional<T> StopAndTake(std::stop_source& stop, std::future<T>& call) {
  {
    const ReleasedGil released;
    stop.request_stop();
  }
  AwaitReady(call, kLongestCancel);
  if (call.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return call.get();
}

// Cancels a job after an interrupt. A daemon that does not answer holds it up for kLongestCancel.
inline void CancelInterrupted(const JobHandle& job) {
  AwaitReady(OnThread([job] { return job.Cancel(kLongestCancel); }));
}

}  // namespace agmm::python
