#include "client/library/background.h"

#include <utility>

#include "kernels/base/status.h"
#include "kernels/base/thread.h"

namespace agmm {

absl::Status Background::Start(absl::string_view purpose, std::function<void()> call) {
  std::vector<std::thread> ended;
  {
    std::lock_guard lock(mutex_);
    const uint64_t number = next_++;
    const auto run = [this, number, call = std::move(call)] {
      call();
      std::lock_guard lock(mutex_);
      auto self = running_.extract(number);
      if (!self.empty()) ended_.push_back(std::move(self.mapped()));
    };
    AGMM_ASSIGN_OR_RETURN(std::thread thread, StartThread(purpose, run));
    running_.emplace(number, std::move(thread));
    ended.swap(ended_);
  }
  for (std::thread& thread : ended) thread.join();
  return absl::OkStatus();
}

void Background::Join() {
  std::map<uint64_t, std::thread> running;
  std::vector<std::thread> ended;
  {
    std::lock_guard lock(mutex_);
    running.swap(running_);
    ended.swap(ended_);
  }
  for (auto& [number, thread] : running) thread.join();
  for (std::thread& thread : ended) thread.join();
}

}  // namespace agmm
