// A line on the terminal while bytes move; nothing where stderr is no terminal.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "client/ctl/terminal_line.h"
#include "client/tensor_transfer.h"

namespace agmm {

class ProgressBar {
 public:
  // `label` is what moves: "A.npy".
  ProgressBar(std::string label, int64_t total_bytes);

  // Draws what it is told. It lives longer.
  Progress progress();

 private:
  // Cheap; draws a few times a second.
  void Update(int64_t bytes);
  void Reconnecting();

  const std::string label_;
  const int64_t total_bytes_;
  int64_t bytes_ = 0;
  const absl::Time start_;
  absl::Time drawn_;
  TerminalLine line_;
};

// " 40 %  [####......]  400 MiB of 1.00 GiB  200 MiB/s  3 s left  A.npy" after `elapsed`. Pure.
std::string ProgressText(const std::string& label, int64_t bytes, int64_t total_bytes,
                         absl::Duration elapsed);
// The same, with "reconnecting" for the rate. Pure.
std::string ReconnectingText(const std::string& label, int64_t bytes, int64_t total_bytes);

}  // namespace agmm
