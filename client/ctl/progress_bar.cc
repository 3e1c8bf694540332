#include "client/ctl/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(100);
constexpr int kWidth = 24;
// A rate says little before there is some time behind it.
constexpr absl::Duration kRateSettles = absl::Milliseconds(500);

std::string TimeLeft(double seconds) {
  const int64_t whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return absl::StrFormat("%d s left", whole);
  if (whole < 3600) return absl::StrFormat("%d:%02d min left", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d h left", whole / 3600, whole / 60 % 60);
}

// " 40 %  [####......]  400 MiB of 1.00 GiB".
std::string BarText(int64_t bytes, int64_t total_bytes) {
  bytes = std::clamp<int64_t>(bytes, 0, total_bytes);
  const double done = total_bytes > 0 ? static_cast<double>(bytes) / total_bytes : 1;
  const int filled = static_cast<int>(done * kWidth);
  return absl::StrFormat("%3.0f %%  [%s%s]  %s of %s", std::floor(done * 100),
                         std::string(filled, '#'), std::string(kWidth - filled, '.'),
                         FormatBytes(bytes), FormatBytes(total_bytes));
}

}  // namespace

std::string ProgressText(const std::string& label, int64_t bytes, int64_t total_bytes,
                         absl::Duration elapsed) {
  std::string text = BarText(bytes, total_bytes);
  if (elapsed >= kRateSettles && bytes > 0) {
    const double rate = bytes / absl::ToDoubleSeconds(elapsed);
    absl::StrAppendFormat(&text, "  %s/s  %s", FormatBytes(static_cast<int64_t>(rate)),
                          TimeLeft(std::max<int64_t>(0, total_bytes - bytes) / rate));
  }
  return absl::StrFormat("%s  %s", text, label);
}

std::string ReconnectingText(const std::string& label, int64_t bytes, int64_t total_bytes) {
  return absl::StrFormat("%s  reconnecting  %s", BarText(bytes, total_bytes), label);
}

ProgressBar::ProgressBar(std::string label, int64_t total_bytes)
    : label_(std::move(label)), total_bytes_(total_bytes), start_(absl::Now()), drawn_(start_) {}

Progress ProgressBar::progress() {
  return {[this](int64_t bytes) { Update(bytes); }, [this] { Reconnecting(); }};
}

void ProgressBar::Update(int64_t bytes) {
  bytes_ = bytes;
  if (!line_.terminal()) return;
  const absl::Time now = absl::Now();
  if (now - drawn_ < kRedraw) return;
  drawn_ = now;
  line_.Draw(ProgressText(label_, bytes, total_bytes_, now - start_));
}

void ProgressBar::Reconnecting() { line_.Draw(ReconnectingText(label_, bytes_, total_bytes_)); }

}  // namespace agmm
