// A call that moves contents of tensors, and the callables that take part in it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stop_token>
#include <utility>

#include "agmm/agmm.h"
#include "extension/await.h"
#include "extension/callback.h"
#include "extension/fields.h"
#include "extension/raise.h"

namespace agmm::python {

// A call that moves contents. An interrupt stops it, and so does a callable that raises.
class Transfer {
 public:
  // `block` moves blocks, and `progress` is called with the bytes moved and all bytes; each may be
  // None.
  Transfer(nanobind::object block, nanobind::object progress, std::stop_source stop)
      : has_progress_(!progress.is_none()),
        callbacks_(std::make_shared<Callbacks>(nanobind::make_tuple(block, progress))),
        stop_(std::move(stop)) {}
  // Drops the callables on this thread, because a thread of the library must not: see Callbacks.
  ~Transfer() { callbacks_->End(); }
  Transfer(const Transfer&) = delete;

  // Let `block` fill or read `size` bytes, in memory of Python's own: views of the library's memory
  // would outlive it in the frames of a traceback. Errors: CANCELLED if `block` raises.
  Status FillBlock(int64_t offset_bytes, std::byte* into, int64_t size) {
    return MoveBlock(
        offset_bytes, size, [&](char*) {},
        [&](const char* block) { std::memcpy(into, block, size); });
  }
  Status ReadBlock(int64_t offset_bytes, const std::byte* from, int64_t size) {
    return MoveBlock(
        offset_bytes, size, [&](char* block) { std::memcpy(block, from, size); },
        [](const char*) {});
  }

  // Calls `move` with the options, perhaps on another thread, and returns the fields of the value
  // of its Result, or raises. `move` may refer to memory of the caller, who waits for its end.
  template <typename Move>
  auto Run(int64_t timeout_ms, const Move& move) {
    TransferOptions options{.timeout = Milliseconds(timeout_ms), .stop = stop_.get_token()};
    if (has_progress_) {
      options.progress = [this](int64_t moved, int64_t total) {
        const auto tell = [&](nanobind::handle callables) { callables[1](moved, total); };
        if (!callbacks_->Run(tell)) stop_.request_stop();
      };
    }
    const auto stop_and_wait = [this](auto& ended) {
      const ReleasedGil released;
      stop_.request_stop();
      ended.wait();
    };
    const auto moved = CallAndWait([&] { return move(options); }, stop_and_wait);
    callbacks_->RaiseAny();
    return FieldsOf(ValueOf(moved));
  }

 private:
  template <typename Before, typename After>
  Status MoveBlock(int64_t offset_bytes, int64_t size, const Before& before, const After& after) {
    const bool moved = callbacks_->Run([&](nanobind::handle callables) {
      if (!memory_.is_valid() || PyByteArray_Size(memory_.ptr()) < size) {
        memory_ = nanobind::steal(PyByteArray_FromStringAndSize(nullptr, size));
        if (!memory_.is_valid()) throw nanobind::python_error();
      }
      char* const block = PyByteArray_AsString(memory_.ptr());
      before(block);
      const nanobind::object view = nanobind::steal(PyMemoryView_FromObject(memory_.ptr()));
      if (!view.is_valid()) throw nanobind::python_error();
      callables[0](offset_bytes, view[nanobind::slice(size)]);
      after(block);
    });
    return moved ? Status() : Status(StatusCode::kCancelled, "the transfer was interrupted");
  }

  const bool has_progress_;
  const std::shared_ptr<Callbacks> callbacks_;
  std::stop_source stop_;    // requested by an interrupt, too
  nanobind::object memory_;  // a bytearray as long as the longest block
};

}  // namespace agmm::python
