// A line on the terminal while bytes move; nothing where stderr is no terminal.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace agmm {

class ProgressBar {
 public:
  // `label` is what moves: "A.npy".
  ProgressBar(std::string label, int64_t total_bytes);
  // Wipes the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // So many of the bytes have moved. Cheap; draws a few times a second.
  void Update(int64_t bytes);

 private:
  const std::string label_;
  const int64_t total_bytes_;
  const bool terminal_;
  const absl::Time start_;
  absl::Time drawn_;
  bool visible_ = false;
};

}  // namespace agmm
