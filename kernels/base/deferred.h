// Calls to make once a lock is released.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace agmm {

// Declare it before the lock: its destructor makes the calls, in the order of Add.
class Deferred {
 public:
  Deferred() = default;
  Deferred(const Deferred&) = delete;
  ~Deferred() { Run(); }

  void Add(std::function<void()> call) { calls_.push_back(std::move(call)); }
  // Makes the calls now.
  void Run() {
    for (auto& call : std::exchange(calls_, {})) call();
  }

 private:
  std::vector<std::function<void()>> calls_;
};

}  // namespace agmm
