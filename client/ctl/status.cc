// agmmctl status: the world, its devices and their memory.
#include <CLI/App.hpp>
#include <iostream>
#include <memory>

#include "client/ctl/status_report.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"
#include "client/ctl/world.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

absl::Status RunStatus(const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection->GetStatus());
  if (options.json)
    std::cout << ToJson(status, connection->endpoint()).dump() << "\n";
  else
    std::cout << StatusText(status);
  return absl::OkStatus();
}

}  // namespace

void AddStatus(CLI::App& app, const Options& options, Action* action) {
  CLI::App* verb = app.add_subcommand("status", "Show the world, its devices and their memory");
  verb->callback([&options, action] { *action = [&options] { return RunStatus(options); }; });
}

}  // namespace agmm
