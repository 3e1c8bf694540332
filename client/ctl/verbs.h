// The verbs of agmmctl, one file each.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace agmm {

// The flags that stand in front of or behind any verb.
struct Options {
  std::string endpoint;  // of the daemon to ask; empty: the local daemon's socket
  bool json = false;     // JSON instead of text for people: results on stdout, an error on stderr
};

// What the chosen verb does. Prints its result on stdout; an error goes back to main.
using Action = std::function<absl::Status()>;

// Each adds its subcommand to `app`; when that is chosen, parsing sets *action. `options` and
// `action` outlive the parse and the action.
void AddBench(CLI::App& app, const Options& options, Action* action);
void AddJob(CLI::App& app, const Options& options, Action* action);
void AddMatmul(CLI::App& app, const Options& options, Action* action);
void AddPlan(CLI::App& app, const Options& options, Action* action);
void AddStatus(CLI::App& app, const Options& options, Action* action);
void AddTensor(CLI::App& app, const Options& options, Action* action);

// Those of a group: `tensor put, get, fill`, `job submit`, `job watch`.
void AddTensorPut(CLI::App* group, const Options& options, Action* action);
void AddTensorGet(CLI::App* group, const Options& options, Action* action);
void AddTensorFill(CLI::App* group, const Options& options, Action* action);
void AddJobSubmit(CLI::App* group, const Options& options, Action* action);
void AddJobWatch(CLI::App* group, const Options& options, Action* action);

}  // namespace agmm
