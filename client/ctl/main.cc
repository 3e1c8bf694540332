#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/suggest.h"
#include "client/ctl/table.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"

namespace agmm {
namespace {

// Prints it on stderr; the exit code.
int Fail(const absl::Status& error, bool json) {
  if (json)
    std::cerr << JsonLine(ToJson(error));
  else
    std::cerr << "agmmctl: " << error.message() << "\n";
  std::cerr.flush();
  return ExitCode(error.code());
}

// Help keeps to 80 columns, texts beside their column of flags too.
constexpr int kHelpColumns = 80, kFlagColumns = 22;

void WrapHelp(CLI::App* app) {
  for (CLI::Option* option : app->get_options())
    option->description(Wrap(option->get_description(), kHelpColumns - kFlagColumns));
  app->footer(Wrap(app->get_footer(), kHelpColumns));
  for (CLI::App* verb : app->get_subcommands([](const CLI::App*) { return true; })) WrapHelp(verb);
}

// Of the verb that was chosen.
std::string SeeHelp(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* chosen = &app; !chosen->get_subcommands().empty();) {
    chosen = chosen->get_subcommands().front();
    path += " " + chosen->get_name();
  }
  return "; see " + path + " --help";
}

int Main(int argc, char** argv) {
  CLI::App app("Multiplies sharded matrices on a world of agmm daemons.", "agmmctl");
  app.set_version_flag("--version", std::string("agmmctl ") + AGMM_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "Exit codes: 0 done, 2 usage, 3 unavailable, 4 not found, 5 not allowed in this state or "
      "not covered by this release, 6 deadline, 7 failed, 8 no space, 130 cancelled.");
  app.get_formatter()->column_width(kFlagColumns);
  Options options;
  Action action;
  app.add_option("--endpoint", options.endpoint,
                 "host:port or unix:path of a daemon (default: the local daemon's socket)")
      ->envname("AGMM_ENDPOINT");
  app.add_flag("--json", options.json, "Print JSON instead of text; an error is JSON on stderr");
  AddStatus(app, options, &action);
  AddTensor(app, options, &action);
  AddJob(app, options, &action);
  AddMatmul(app, options, &action);
  AddBench(app, options, &action);
  AddPlan(app, options, &action);
  WrapHelp(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    const std::string mistake = VerbMistake(app);
    // A line that cannot be parsed has set nothing.
    const bool json = std::find(argv, argv + argc, std::string("--json")) != argv + argc;
    return Fail(absl::InvalidArgumentError(mistake.empty() ? error.what() + SeeHelp(app) : mistake),
                json);
  }
  const absl::Status status = action();
  if (!status.ok()) return Fail(status, options.json);
  // Also what C wrote, and what failed before.
  if (!std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return Fail(absl::UnknownError("cannot write the output"), options.json);
  return 0;
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) { return agmm::Main(argc, argv); }
