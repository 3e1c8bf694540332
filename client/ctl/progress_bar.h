// A line on the terminal while bytes move; nothing where stderr is no terminal.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "client/ctl/terminal_line.h"

namespace agmm {

class ProgressBar {
 public:
  // `label` is what moves: "A.npy".
  ProgressBar(std::string label, int64_t total_bytes);

  // So many of the bytes have moved. Cheap; draws a few times a second.
  void Update(int64_t bytes);

 private:
  const std::string label_;
  const int64_t total_bytes_;
  const absl::Time start_;
  absl::Time drawn_;
  TerminalLine line_;
};

// " 40 %  [####......]  400 MiB of 1.00 GiB  200 MiB/s  3 s left  A.npy" after `elapsed`. Pure.
std::string ProgressText(const std::string& label, int64_t bytes, int64_t total_bytes,
                         absl::Duration elapsed);

}  // namespace agmm
