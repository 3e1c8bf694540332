#include "client/ctl/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {
constexpr absl::Duration kRedraw = absl::Milliseconds(100);
constexpr int kWidth = 30;
}  // namespace

ProgressBar::ProgressBar(std::string label, int64_t total_bytes)
    : label_(std::move(label)),
      total_bytes_(total_bytes),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(absl::Now()),
      drawn_(start_) {}

ProgressBar::~ProgressBar() {
  if (visible_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::Update(int64_t bytes) {
  if (!terminal_) return;
  const absl::Time now = absl::Now();
  if (now - drawn_ < kRedraw) return;
  drawn_ = now;
  visible_ = true;
  const double done = total_bytes_ > 0 ? static_cast<double>(bytes) / total_bytes_ : 1;
  const int filled = static_cast<int>(done * kWidth);
  const int64_t rate = static_cast<int64_t>(bytes / absl::ToDoubleSeconds(now - start_));
  std::string line = absl::StrFormat(
      "%3.0f %%  [%s%s]  %s of %s  %s/s  %s", done * 100, std::string(filled, '#'),
      std::string(kWidth - filled, '.'), FormatBytes(bytes), FormatBytes(total_bytes_),
      FormatBytes(rate), label_);
  // A line that wraps could not be drawn over.
  winsize window = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
    line.resize(std::min<size_t>(line.size(), window.ws_col - 1));
  absl::FPrintF(stderr, "\r\033[K%s", line);
  std::fflush(stderr);
}

}  // namespace agmm
