#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/arguments.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/table.h"
#include "client/ctl/verbs.h"
#include "kernels/base/reason.h"
#include "kernels/base/utf8.h"
#include "kernels/base/version.h"

namespace agmm {
namespace {

// After a lost daemon, commands succeed again once the world has formed.
absl::Status WithAdvice(const absl::Status& error) {
  if (ReasonOf(error) != kReasonPeerLost) return error;
  return WithReason(
      absl::Status(error.code(), absl::StrCat(error.message(),
                                              " (`agmmctl status --ready` waits for the world)")),
      kReasonPeerLost);
}

// Prints the error on stderr and returns the exit code.
int Fail(const absl::Status& failure, bool json) {
  const absl::Status error = WithAdvice(failure);
  if (json)
    std::cerr << JsonLine(ToJson(error));
  else
    std::cerr << "agmmctl: " << Printable(error.message()) << "\n";
  std::cerr.flush();
  return ExitCode(error.code());
}

// Help fits in 80 columns, with the descriptions of flags in a column of their own.
constexpr int kHelpColumns = 80, kFlagColumns = 22;

// A footer with line breaks is a list, which keeps them. Verbs without a footer inherit the exit
// codes, which are one.
std::string WrapFooter(const std::string& footer) {
  return absl::StrContains(footer, '\n') ? footer : Wrap(footer, kHelpColumns);
}

void WrapHelp(CLI::App* app) {
  for (CLI::Option* option : app->get_options())
    option->description(Wrap(option->get_description(), kHelpColumns - kFlagColumns));
  for (CLI::App* verb : app->get_subcommands([](const CLI::App*) { return true; })) {
    verb->footer(WrapFooter(verb->get_footer()));
    WrapHelp(verb);
  }
}

int Main(int argc, char** argv) {
  // An error is one line of our own; gRPC's log would repeat it in other words.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond ulimit -f is an error of its write
  WatchSignals();
  FitLinesToOutput();
  CLI::App app("Multiplies sharded matrices on a world of agmm daemons.", "agmmctl");
  app.set_version_flag("--version", absl::StrCat("agmmctl ", Version()));
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "Exit codes:\n"
      "  0    success\n"
      "  2    wrong usage, or an unusable input file\n"
      "  3    no daemon answers; the world is not ready; a GPU was lost; or a daemon\n"
      "       was lost during a put, get or fill\n"
      "  4    not found, or a tensor that was lost with a daemon\n"
      "  5    refused in this state or for this user, or not supported\n"
      "  6    deadline exceeded\n"
      "  7    a job that was lost with a daemon, or any other failure\n"
      "  8    out of memory or disk space\n"
      "  130  cancelled\n"
      "If a job fails, the command exits with the code of the job's error.");
  app.get_formatter()->column_width(kFlagColumns);
  Command command;
  app.add_option("--endpoint", command.options.endpoint,
                 "The daemon to ask: host:port or unix:/path (default: the socket of the local "
                 "daemon)")
      ->envname("AGMM_ENDPOINT");
  app.add_flag("--json", command.options.json,
               "Print JSON instead of text; errors are JSON on stderr");
  AddStatus(&app, &command);
  AddTopo(&app, &command);
  AddTensor(&app, &command);
  AddJob(&app, &command);
  AddSession(&app, &command);
  AddMatmul(&app, &command);
  AddBench(&app, &command);
  AddTune(&app, &command);
  AddPlan(&app, &command);
  AddSimulate(&app, &command);
  AddAdvise(&app, &command);
  WrapHelp(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    // A failed parse has set no flag.
    const bool json = std::find(argv, argv + argc, std::string("--json")) != argv + argc;
    return Fail(absl::InvalidArgumentError(MistakeOf(app, error.what())), json);
  }
  absl::Status status = command.conflicts.Check();
  if (status.ok()) status = command.run();
  if (!status.ok()) return Fail(status, command.options.json);
  // Also detects failed writes through C's stdio and earlier failures.
  if (!std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return Fail(absl::UnknownError("cannot write the output"), command.options.json);
  return 0;
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) { return agmm::Main(argc, argv); }
