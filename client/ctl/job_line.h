// The line on the terminal about a wait for a job: the time, and where the job is.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "client/connect/connection.h"
#include "client/ctl/terminal_line.h"

namespace agmm {

class JobLine {
 public:
  // Asks for the job's progress about once a second, unless stderr is not a terminal.
  JobLine(Connection* connection, const Id& job, absl::Duration limit);
  ~JobLine();

  // As TerminalLine::Print.
  void Print(const std::function<void()>& print) { line_.Print(print); }

 private:
  void Ask(Connection* connection, const Id& job);

  std::string where_;  // guarded by line_
  TerminalLine line_;
  std::stop_source stop_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace agmm
