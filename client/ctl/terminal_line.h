// The line on the terminal about work in progress: a wait, a transfer, a round of a benchmark. It
// is redrawn in place a few times a second, on a thread of its own; where stderr is not a terminal
// nothing is drawn, or the line is written once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "client/connect/tensor_transfer.h"

namespace agmm {

// Thread-safe.
class TerminalLine {
 public:
  // `text` returns the line; `elapsed` is the time since the construction. It runs on the line's
  // thread, never while a function given to Update or Print runs. `once_after`: where stderr is not
  // a terminal, the line is written after this time, with an end of line; infinite: never.
  explicit TerminalLine(std::function<std::string(absl::Duration elapsed)> text,
                        absl::Duration once_after = absl::InfiniteDuration());
  // Wipes the line.
  ~TerminalLine();
  TerminalLine(const TerminalLine&) = delete;
  TerminalLine& operator=(const TerminalLine&) = delete;

  // False where nothing is ever drawn or written.
  bool IsShown() const { return thread_.joinable(); }
  // Runs `change`, which changes what `text` reads.
  void Update(const std::function<void()>& change);
  // Wipes the line and runs `print`, which writes whole lines to the terminal.
  void Print(const std::function<void()>& print);

 private:
  void Redraw(std::stop_token stop);
  void WriteOnce(std::stop_token stop, absl::Duration after);
  std::string Text() const;

  const std::function<std::string(absl::Duration)> text_;
  const int64_t start_ns_;
  std::mutex mutex_;
  std::condition_variable_any redraw_;  // only the stop token ends its waits early
  bool visible_ = false;                // guarded by the mutex, like all that text_ reads
  std::stop_source stop_;
  std::thread thread_;
};

// The line of a wait for `label`, such as "job 3", that lasts at most `limit`.
TerminalLine WaitLine(std::string label, absl::Duration limit);

// The line of a transfer of `total_bytes`; `label` is what moves, such as "A.npy".
class ProgressLine {
 public:
  ProgressLine(std::string label, int64_t total_bytes);
  // Reports to this line, which must outlive the transfer.
  Progress progress();

 private:
  int64_t bytes_ = 0;
  bool reconnecting_ = false;
  TerminalLine line_;  // last: its thread reads the others
};

// "3 s left", "1:05 min left". Pure.
std::string TimeLeft(double seconds);
// "job 3  12 s of at most 1m30s". Pure.
std::string WaitText(const std::string& label, absl::Duration elapsed, absl::Duration limit);
// " 40 %  [####......]  400 MiB of 1.00 GiB  200 MiB/s  3 s left  A.npy", or "reconnecting" in
// place of the rate. Pure.
std::string ProgressText(const std::string& label, int64_t bytes, int64_t total_bytes,
                         absl::Duration elapsed, bool reconnecting);

}  // namespace agmm
