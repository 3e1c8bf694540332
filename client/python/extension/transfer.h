// A call that moves contents of tensors, and the callables that take part in it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <utility>

#include "agmm/agmm.h"
#include "extension/await.h"
#include "extension/callback.h"
#include "extension/fields.h"
#include "extension/raise.h"

namespace agmm::python {

// PyBUF_READ and PyBUF_WRITE, which the stable ABI of Python 3.10 has, but its headers do not.
inline constexpr int kToRead = 0x100, kToWrite = 0x200;

// A call that moves contents. An interrupt stops it, and so does a callable that raises.
class Transfer {
 public:
  // `block` moves blocks, and `progress` is called with the bytes moved and all bytes; each may be
  // None.
  Transfer(nanobind::object block, nanobind::object progress, std::stop_source stop)
      : has_progress_(!progress.is_none()),
        callbacks_(std::make_shared<Callbacks>(nanobind::make_tuple(block, progress))),
        stop_(std::move(stop)) {}

  // Lets `block` fill or read the `size` bytes at `memory`. Errors: CANCELLED if it raises.
  Status MoveBlock(int64_t offset_bytes, std::byte* memory, int64_t size, int flags) const {
    const bool moved = callbacks_->Run([&](nanobind::handle callables) {
      const nanobind::object view =
          nanobind::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(memory), size, flags));
      if (!view.is_valid()) throw nanobind::python_error();
      callables[0](offset_bytes, view);
      view.attr("release")();
    });
    return moved ? Status() : Status(StatusCode::kCancelled, "the transfer was interrupted");
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
  const bool has_progress_;
  const std::shared_ptr<Callbacks> callbacks_;
  std::stop_source stop_;  // requested by an interrupt, too
};

}  // namespace agmm::python
