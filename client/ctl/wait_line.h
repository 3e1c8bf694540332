// A line on the terminal while a job is awaited: what, how long, how long at most. Nothing where
// stderr is no terminal.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "client/ctl/terminal_line.h"

namespace agmm {

// Thread-safe.
class WaitLine {
 public:
  // Time runs from now on; it appears once that is long for a person.
  WaitLine(std::string label, absl::Duration limit);
  // Wipes the line.
  ~WaitLine();
  WaitLine(const WaitLine&) = delete;
  WaitLine& operator=(const WaitLine&) = delete;

  // Runs `print`, which writes whole lines to the terminal, with the line out of the way.
  void Around(const std::function<void()>& print);

 private:
  void Run();

  const std::string label_;
  const absl::Duration limit_;
  const absl::Time start_;
  TerminalLine line_;
  std::mutex mutex_;
  std::condition_variable over_changed_;
  bool over_ = false;
  std::thread thread_;
};

// "job 3  12 s of at most 60 s". Pure.
std::string WaitText(const std::string& label, absl::Duration elapsed, absl::Duration limit);

}  // namespace agmm
