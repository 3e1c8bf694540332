// agmmctl status: the state of the world, its devices and their memory.
#include <CLI/App.hpp>
#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/ctl/arguments.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/report.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/verbs.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);

struct StatusFlags {
  bool ready = false;
  std::string timeout = "30s";
};

// Returns the status once the world is ready; the daemon may still be starting. Errors: the last
// one, at the end of `timeout`, or at once if waiting does not help.
absl::StatusOr<v1::GetStatusResponse> AwaitReady(Connection* connection, absl::Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  const TerminalLine line = WaitLine("waiting for the world", timeout);
  while (true) {
    absl::StatusOr<v1::GetStatusResponse> status =
        ReadyWorld(connection, std::min(deadline.Left(), kShortCall));
    if (!absl::IsUnavailable(status.status()) && !absl::IsDeadlineExceeded(status.status()))
      return status;
    if (deadline.Left() <= kPoll) {
      const absl::Status last =
          Annotate(status.status(), absl::StrCat("after ", absl::FormatDuration(timeout)));
      return WithReason(absl::UnavailableError(last.message()), ReasonOf(status.status()));
    }
    absl::SleepFor(kPoll);
  }
}

absl::Status RunStatus(const StatusFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseTimeout(flags.timeout));
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                        flags.ready ? AwaitReady(connection, timeout) : connection->GetStatus());
  Json json = ToJson(status);
  json["endpoint"] = connection->endpoint().text;
  PrintResult(options, json, StatusText(status));
  return absl::OkStatus();
}

}  // namespace

void AddStatus(CLI::App* app, Command* command) {
  CLI::App* verb = app->add_subcommand("status", "Show the world, its devices and their memory");
  auto flags = std::make_shared<StatusFlags>();
  CLI::Option* ready = verb->add_flag("--ready", flags->ready,
                                      "Wait until the world is ready to run jobs; exit with 3 "
                                      "if it is not by the end of --timeout");
  verb->add_option("--timeout", flags->timeout,
                   "How long --ready waits, such as 30s or 5m, at most 24h")
      ->capture_default_str()
      ->needs(ready);
  OnVerb(verb, command, flags, RunStatus);
}

}  // namespace agmm
