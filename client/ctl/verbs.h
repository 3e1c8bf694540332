// The verbs of agmmctl, a file each: verb_NAME.cc.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/connect/connection.h"
#include "client/ctl/flag_conflicts.h"
#include "client/ctl/json.h"
#include "client/files/output_file.h"
#include "kernels/base/status.h"
#include "kernels/base/utf8.h"

namespace agmm {

// The flags that every verb has.
struct Options {
  std::string endpoint;  // the daemon to ask; empty: the local daemon's socket
  bool json = false;     // JSON instead of text: results on stdout, an error on stderr
};

// The names that errors of the connection use for flags and commands.
inline const Wording kWording = {.endpoint = " with --endpoint"};

// The parsed command line. `run` belongs to the chosen verb: it prints the result on stdout, and
// main prints its error.
struct Command {
  Options options;
  FlagConflicts conflicts;  // main checks them before `run`
  std::function<absl::Status()> run;
};

// Each adds its verb to `app`. Parsing fills in `command`, which outlives it.
void AddAdvise(CLI::App* app, Command* command);
void AddBench(CLI::App* app, Command* command);
void AddJob(CLI::App* app, Command* command);
void AddMatmul(CLI::App* app, Command* command);
void AddPlan(CLI::App* app, Command* command);
void AddSession(CLI::App* app, Command* command);
void AddSimulate(CLI::App* app, Command* command);
void AddStatus(CLI::App* app, Command* command);
void AddTensor(CLI::App* app, Command* command);
void AddTensorLoad(CLI::App* tensor, Command* command);  // agmmctl tensor load
void AddTensorSave(CLI::App* tensor, Command* command);  // agmmctl tensor save
void AddTopo(CLI::App* app, Command* command);
void AddTune(CLI::App* app, Command* command);

// Makes `verb` call `run`; parsing has filled in *flags by then.
template <typename Flags>
void OnVerb(CLI::App* verb, Command* command, const std::shared_ptr<Flags>& flags,
            absl::Status (*run)(const Flags&, const Options&)) {
  verb->callback([=] { command->run = [=] { return run(*flags, command->options); }; });
}

// Like the above, for a verb that asks a daemon; the first call opens the connection.
template <typename Flags>
void OnVerb(CLI::App* verb, Command* command, const std::shared_ptr<Flags>& flags,
            absl::Status (*run)(const Flags&, const Options&, Connection*)) {
  verb->callback([=] {
    command->run = [=]() -> absl::Status {
      AGMM_ASSIGN_OR_RETURN(Endpoint endpoint,
                            ResolveEndpoint(command->options.endpoint, kWording));
      Connection connection(std::move(endpoint));
      return run(*flags, command->options, &connection);
    };
  });
}

// Prints a result, as JSON or as text. `file` is the file that the command has written; if that is
// standard output, the result goes to stderr.
inline void PrintResult(const Options& options, const Json& json, const std::string& text,
                        const std::string& file = "") {
  (IsStandardOutput(file) ? std::cerr : std::cout)
      << (options.json ? JsonLine(json) : Printable(text));
}

// Says on stderr that a command has written `what` to its --save file. Not with JSON, because then
// stderr is for errors only.
inline void SayWritten(const Options& options, const std::string& file, const std::string& what) {
  if (!options.json && !IsStandardOutput(file))
    std::cerr << Printable(file) << ": " << what << "\n";
}

}  // namespace agmm
