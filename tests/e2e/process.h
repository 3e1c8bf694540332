// A program started by a test, with its output in files. It ends with the test at the latest.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace agmm {

class Process {
 public:
  // Starts argv[0]. Its stdout goes to `log`.out, its stderr to `log`.err.
  Process(const std::vector<std::string>& argv, std::string log,
          const std::map<std::string, std::string>& environment = {});
  // SIGKILLs it if it still runs. A sanitizer's report in its stderr fails the test.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Has no effect once Wait has reaped the process.
  void Signal(int signal);
  // Sends SIGSTOP and returns when all threads have stopped. SIGCONT continues the process.
  void Stop();
  // Waits for its end and reaps it. Returns the exit code, or 128 + the signal that ended it;
  // absent if it still runs after `limit`.
  std::optional<int> Wait(absl::Duration limit);
  bool Running() { return !Wait(absl::ZeroDuration()).has_value(); }
  pid_t pid() const { return pid_; }
  // Returns true if a set of /proc/PID/status, such as "SigIgn", has the signal; also if it cannot
  // be read, because the process has ended.
  bool HasSignal(const std::string& set, int signal) const;

  std::string out() const;
  std::string err() const;

 private:
  const std::string log_;
  pid_t pid_ = -1;
  std::optional<int> code_;
};

// Returns the whole file; empty if it does not exist.
std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& contents);

}  // namespace agmm
