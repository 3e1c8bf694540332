#include "client/ctl/wait_line.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace agmm {
namespace {
constexpr auto kRedraw = std::chrono::milliseconds(500);
}  // namespace

std::string WaitText(const std::string& label, absl::Duration elapsed, absl::Duration limit) {
  return absl::StrFormat("%s  %d s of at most %s", label, absl::ToInt64Seconds(elapsed),
                         absl::FormatDuration(limit));
}

WaitLine::WaitLine(std::string label, absl::Duration limit)
    : label_(std::move(label)), limit_(limit), start_(absl::Now()) {
  if (line_.terminal()) thread_ = std::thread([this] { Run(); });
}

WaitLine::~WaitLine() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  over_changed_.notify_all();
  thread_.join();
}

void WaitLine::Around(const std::function<void()>& print) {
  std::lock_guard lock(mutex_);
  line_.Wipe();
  print();
}

void WaitLine::Run() {
  std::unique_lock lock(mutex_);
  while (!over_changed_.wait_for(lock, kRedraw, [this] { return over_; }))
    line_.Draw(WaitText(label_, absl::Now() - start_, limit_));
}

}  // namespace agmm
