#include "extension/transfers.h"

#include <functional>
#include <future>
#include <memory>
#include <stop_token>
#include <utility>

#include "extension/await.h"
#include "extension/callback.h"
#include "extension/fields.h"
#include "extension/raise.h"

namespace nb = nanobind;

namespace agmm::python {
namespace {

// PyBUF_READ and PyBUF_WRITE, which the stable ABI of Python 3.10 has, but its headers do not.
constexpr int kToRead = 0x100, kToWrite = 0x200;

// Starts the transfer.
using Start = std::function<std::future<Result<TensorInfo>>(TransferOptions options)>;

Status Stopped() { return Status(StatusCode::kCancelled, "the transfer was interrupted"); }

// The callables of a transfer: a tuple of the one for blocks and the one for progress.
class Transfer {
 public:
  Transfer(nb::object block, nb::object progress, std::stop_source stop)
      : has_progress_(!progress.is_none()),
        callbacks_(std::make_shared<Callbacks>(nb::make_tuple(block, progress))),
        stop_(std::move(stop)) {}

  // Fills or reads the `size` bytes at `memory`.
  Status MoveBlock(int64_t offset_bytes, std::byte* memory, int64_t size, int flags) const {
    const bool moved = callbacks_->Run([&](nb::handle callables) {
      const nb::object view =
          nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(memory), size, flags));
      if (!view.is_valid()) throw nb::python_error();
      callables[0](offset_bytes, view);
      view.attr("release")();
    });
    return moved ? Status() : Stopped();
  }

  nb::tuple Run(int64_t timeout_ms, const Start& start) {
    TransferOptions options{.timeout = Milliseconds(timeout_ms), .stop = stop_.get_token()};
    if (has_progress_) {
      options.progress = [callbacks = callbacks_, stop = stop_](int64_t moved,
                                                                int64_t total) mutable {
        const auto tell = [&](nb::handle callables) { callables[1](moved, total); };
        if (!callbacks->Run(tell)) stop.request_stop();
      };
    }
    std::future<Result<TensorInfo>> future = [&] {
      const ReleasedGil released;
      return start(std::move(options));
    }();
    const Result<TensorInfo> moved = Await(std::move(future), [this](auto& ended) {
      const ReleasedGil released;
      stop_.request_stop();
      ended.wait();  // the memory must stay until then
    });
    callbacks_->RaiseAny();
    return FieldsOf(ValueOf(moved));
  }

 private:
  const bool has_progress_;
  const std::shared_ptr<Callbacks> callbacks_;
  std::stop_source stop_;  // requested by an interrupt, too
};

}  // namespace

nb::tuple Put(const Connected& self, const std::string& name, const TensorSpec& spec,
              uintptr_t pointer, int64_t size_bytes, nb::object progress, int64_t timeout_ms,
              std::stop_source stop) {
  Transfer transfer(nb::none(), std::move(progress), std::move(stop));
  return transfer.Run(timeout_ms, [&, client = self.client()](TransferOptions options) {
    return client->PutAsync(name, spec, reinterpret_cast<const void*>(pointer), size_bytes,
                            std::move(options));
  });
}

nb::tuple Get(const Connected& self, const std::string& name, uintptr_t pointer, int64_t size_bytes,
              nb::object progress, int64_t timeout_ms, std::stop_source stop) {
  Transfer transfer(nb::none(), std::move(progress), std::move(stop));
  return transfer.Run(timeout_ms, [&, client = self.client()](TransferOptions options) {
    return client->GetAsync(name, reinterpret_cast<void*>(pointer), size_bytes, std::move(options));
  });
}

nb::tuple PutBlocks(const Connected& self, const std::string& name, const TensorSpec& spec,
                    nb::callable block, nb::object progress, int64_t timeout_ms,
                    std::stop_source stop) {
  Transfer transfer(std::move(block), std::move(progress), std::move(stop));
  const Reader reader = [&](int64_t offset_bytes, std::byte* into, int64_t size) {
    return transfer.MoveBlock(offset_bytes, into, size, kToWrite);
  };
  return transfer.Run(timeout_ms, [&, client = self.client()](TransferOptions options) {
    return client->PutAsync(name, spec, reader, std::move(options));
  });
}

nb::tuple GetBlocks(const Connected& self, const std::string& name, nb::callable block,
                    nb::object progress, int64_t timeout_ms, std::stop_source stop) {
  Transfer transfer(std::move(block), std::move(progress), std::move(stop));
  const Writer writer = [&](int64_t offset_bytes, const std::byte* from, int64_t size) {
    return transfer.MoveBlock(offset_bytes, const_cast<std::byte*>(from), size, kToRead);
  };
  return transfer.Run(timeout_ms, [&, client = self.client()](TransferOptions options) {
    return client->GetAsync(name, writer, std::move(options));
  });
}

}  // namespace agmm::python
