// A callback that runs exactly once, even if its owner is destroyed.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace agmm::transport {

// Runs with ABORTED when it is destroyed without having run. Thread-compatible.
class Done {
 public:
  Done() = default;
  explicit Done(std::function<void(absl::Status)> run) : run_(std::move(run)) {}
  Done(Done&& other) : run_(std::exchange(other.run_, nullptr)) {}
  Done& operator=(Done&& other) {
    std::swap(run_, other.run_);
    return *this;
  }
  ~Done() { (*this)(absl::AbortedError("the transport is closing and sends nothing more")); }

  void operator()(absl::Status status) {
    if (auto run = std::exchange(run_, nullptr)) run(std::move(status));
  }

 private:
  std::function<void(absl::Status)> run_;
};

}  // namespace agmm::transport
