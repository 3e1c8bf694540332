// agmmctl status: the world, its devices and their memory.
#include <CLI/App.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/ctl/arguments.h"
#include "client/ctl/status_report.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"
#include "client/ctl/wait_line.h"
#include "client/ctl/world.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);

struct StatusFlags {
  bool ready = false;
  std::string timeout = "30s";
};

// What the world is once jobs can run in it, also where its daemon is yet to come. Errors: the last
// one when `timeout` is over; at once those that no waiting mends.
absl::StatusOr<v1::GetStatusResponse> AwaitReady(Connection* connection, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const WaitLine line("waiting for the world", timeout);
  while (true) {
    absl::StatusOr<v1::GetStatusResponse> status =
        ReadyWorld(connection, std::min(deadline - absl::Now(), kShortCall));
    if (!absl::IsUnavailable(status.status()) && !absl::IsDeadlineExceeded(status.status()))
      return status;
    if (absl::Now() + kPoll >= deadline)
      return Annotate(status.status(), absl::StrCat("after ", absl::FormatDuration(timeout)));
    absl::SleepFor(kPoll);
  }
}

absl::Status RunStatus(const StatusFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseTimeout(flags.timeout));
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(
      const v1::GetStatusResponse status,
      flags.ready ? AwaitReady(connection.get(), timeout) : connection->GetStatus());
  if (options.json)
    std::cout << JsonLine(ToJson(status, connection->endpoint()));
  else
    std::cout << StatusText(status);
  return absl::OkStatus();
}

}  // namespace

void AddStatus(CLI::App& app, const Options& options, Action* action) {
  CLI::App* verb = app.add_subcommand("status", "Show the world, its devices and their memory");
  auto flags = std::make_shared<StatusFlags>();
  CLI::Option* ready = verb->add_flag("--ready", flags->ready,
                                      "Wait until jobs can run; exit with 3 if they cannot");
  verb->add_option("--timeout", flags->timeout, "How long to wait, at most 24h")
      ->capture_default_str()
      ->needs(ready);
  verb->callback([flags, &options, action] {
    *action = [flags, &options] { return RunStatus(*flags, options); };
  });
}

}  // namespace agmm
