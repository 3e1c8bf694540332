#include "client/ctl/terminal_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/table.h"
#include "kernels/base/clock.h"
#include "kernels/base/thread.h"
#include "kernels/base/units.h"
#include "kernels/base/utf8.h"

namespace agmm {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(200);
constexpr int kBarColumns = 24;
// Time until a rate is meaningful.
constexpr absl::Duration kRateSettles = absl::Milliseconds(500);

// True if stderr is a terminal that knows escape sequences.
bool CanRedraw() {
  const char* const term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && absl::string_view(term) != "dumb";
}

}  // namespace

TerminalLine::TerminalLine(std::function<std::string(absl::Duration)> text,
                           absl::Duration once_after)
    : text_(std::move(text)), start_ns_(MonotonicNanos()) {
  const bool terminal = CanRedraw();
  if (!terminal && once_after == absl::InfiniteDuration()) return;
  absl::StatusOr<std::thread> thread =
      StartThread("the line on the terminal", [this, terminal, once_after] {
        terminal ? Redraw(stop_.get_token()) : WriteOnce(stop_.get_token(), once_after);
      });
  // Without a thread, nothing is drawn.
  if (thread.ok()) thread_ = *std::move(thread);
}

TerminalLine::~TerminalLine() {
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
  Print([] {});
}

void TerminalLine::Update(const std::function<void()>& change) {
  std::lock_guard lock(mutex_);
  change();
}

void TerminalLine::Print(const std::function<void()>& print) {
  std::lock_guard lock(mutex_);
  if (visible_) std::fputs("\r\033[K", stderr);
  visible_ = false;
  print();
}

std::string TerminalLine::Text() const {
  return Printable(text_(absl::Nanoseconds(MonotonicNanos() - start_ns_)));
}

void TerminalLine::WriteOnce(std::stop_token stop, absl::Duration after) {
  std::unique_lock lock(mutex_);
  redraw_.wait_for(lock, stop, absl::ToChronoNanoseconds(after),
                   [&] { return stop.stop_requested(); });
  // The result of the wait may be false after a stop, too (libstdc++ 12).
  if (stop.stop_requested()) return;
  absl::FPrintF(stderr, "%s\n", Text());
}

void TerminalLine::Redraw(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!redraw_.wait_for(lock, stop, kRedraw, [&] { return stop.stop_requested(); })) {
    const std::string text = Text();
    absl::string_view shown = text;
    // A line that wraps cannot be redrawn in place.
    winsize window = {};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
      shown = FirstColumns(text, window.ws_col - 1);
    absl::FPrintF(stderr, "\r\033[K%s", shown);
    visible_ = true;
  }
}

TerminalLine WaitLine(std::string label, absl::Duration limit) {
  return TerminalLine([label = std::move(label), limit](absl::Duration elapsed) {
    return WaitText(label, elapsed, limit);
  });
}

ProgressLine::ProgressLine(std::string label, int64_t total_bytes)
    : line_([this, label = std::move(label), total_bytes](absl::Duration elapsed) {
        return ProgressText(label, bytes_, total_bytes, elapsed, reconnecting_);
      }) {}

Progress ProgressLine::progress() {
  return {[this](int64_t bytes) { line_.Update([&] { bytes_ = bytes, reconnecting_ = false; }); },
          [this] { line_.Update([this] { reconnecting_ = true; }); }};
}

std::string TimeLeft(double seconds) {
  const int64_t whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return absl::StrFormat("%d s left", whole);
  if (whole < 3600) return absl::StrFormat("%d:%02d min left", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d h left", whole / 3600, whole / 60 % 60);
}

std::string WaitText(const std::string& label, absl::Duration elapsed, absl::Duration limit) {
  return absl::StrFormat("%s  %d s of at most %s", label, absl::ToInt64Seconds(elapsed),
                         absl::FormatDuration(limit));
}

std::string ProgressText(const std::string& label, int64_t bytes, int64_t total_bytes,
                         absl::Duration elapsed, bool reconnecting) {
  bytes = std::clamp<int64_t>(bytes, 0, total_bytes);
  const double done = total_bytes > 0 ? static_cast<double>(bytes) / total_bytes : 1;
  const int filled = static_cast<int>(done * kBarColumns);
  std::string text = absl::StrFormat(
      "%3.0f %%  [%s%s]  %s of %s", std::floor(done * 100), std::string(filled, '#'),
      std::string(kBarColumns - filled, '.'), FormatBytes(bytes), FormatBytes(total_bytes));
  if (reconnecting) {
    text += "  reconnecting";
  } else if (elapsed >= kRateSettles && bytes > 0) {
    const double rate = bytes / absl::ToDoubleSeconds(elapsed);
    absl::StrAppendFormat(&text, "  %s/s  %s", FormatBytes(static_cast<int64_t>(rate)),
                          TimeLeft((total_bytes - bytes) / rate));
  }
  return absl::StrCat(text, "  ", label);
}

}  // namespace agmm
