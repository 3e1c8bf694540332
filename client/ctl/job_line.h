// The line on the terminal about a wait for a job: the time, and where the job is.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "client/connect/connection.h"
#include "client/ctl/terminal_line.h"

namespace agmm {

class JobLine {
 public:
  // Asks for the job's progress about once a second, if the line is shown.
  JobLine(Connection* connection, const Id& job, absl::Duration limit);
  ~JobLine();

  // As TerminalLine::Print.
  void Print(const std::function<void()>& print) { line_.Print(print); }

 private:
  void Ask(const Id& job);

  // A separate one, because its calls are interrupted at the end of the wait. Null: nothing is
  // shown.
  std::unique_ptr<Connection> asking_;
  std::string where_;  // guarded by line_
  TerminalLine line_;
  std::stop_source stop_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace agmm
