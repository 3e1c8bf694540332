// The table of tuned plans that node 0's daemon keeps: tuning.textproto in the folder of machines.
// Worlds that share the folder share the table.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/predict/tuning.h"
#include "proto/convert/tuning_text.h"

namespace agmm::measure {

class TuningFile {
 public:
  // Without a folder, the table is kept in memory. Writes wait up to `patience` for other daemons.
  explicit TuningFile(const std::string& folder, absl::Duration patience = absl::Seconds(1));

  // Empty: none.
  const std::string& path() const { return path_; }
  // Returns an empty table if the file does not exist. Errors: one line with the file, if it cannot
  // be read or is larger than kMaxTuningBytes.
  absl::StatusOr<TuningText> Read() const;
  // Adds the plans to the file as it is now, and returns all of its plans. Another daemon may add
  // plans of its own at the same time. Errors: one line with the file, which is then as before:
  // those of Read and AddTuning, and UNAVAILABLE while another daemon writes.
  absl::StatusOr<TuningText> Add(const std::vector<TunedPlan>& plans);

 private:
  absl::StatusOr<std::string> Text() const;
  std::string name() const { return path_.empty() ? "the table" : path_; }

  const std::string path_;
  const absl::Duration patience_;
  std::string text_;  // without a file
};

}  // namespace agmm::measure
