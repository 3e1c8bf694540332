// Threads of calls in the background.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace agmm {

// Thread-safe.
class Background {
 public:
  // Runs `call` on a thread of its own. Errors: RESOURCE_EXHAUSTED; then `call` never runs.
  absl::Status Start(absl::string_view purpose, std::function<void()> call);
  // Waits for the calls and joins their threads. No Start may come later.
  void Join();

 private:
  std::mutex mutex_;  // guards all below
  uint64_t next_ = 0;
  std::map<uint64_t, std::thread> running_;
  std::vector<std::thread> ended_;
};

}  // namespace agmm
