// agmmctl session: the clients whose tensors and jobs end with their connections.
#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/ctl/report.h"
#include "client/ctl/session_table.h"
#include "client/ctl/verbs.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

struct SessionListFlags {};

absl::Status RunSessionList(const SessionListFlags&, const Options& options,
                            Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const v1::ListSessionsResponse sessions, connection->ListSessions());
  AGMM_ASSIGN_OR_RETURN(const v1::ListTensorsResponse tensors, connection->ListTensors());
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection->GetStatus());
  const std::vector<PermanentTensors> permanent = PermanentByOwner(tensors);
  PrintResult(options, ToJson(sessions, permanent, status),
              absl::StrCat(SessionTable(sessions, permanent, status, absl::Now()), "\n",
                           MemoryTable(status)));
  return absl::OkStatus();
}

}  // namespace

void AddSession(CLI::App* app, Command* command) {
  CLI::App* group = app->add_subcommand("session", "Connected clients, and the memory they hold");
  group->require_subcommand(1);
  CLI::App* list =
      group->add_subcommand("list", "List open sessions by the memory that their tensors take");
  list->footer(
      "A client with a session is listed with the process and the host that opened it; its tensors "
      "and jobs end with it. Tensors without a session have a row for each owner: they stay until "
      "they are deleted. \"all ranks\" is the memory of the tensors on all devices. Tensors that a "
      "session has deleted count until no job, transfer or mapping uses them. The table below has "
      "the memory of the world by class, as in `agmmctl tensor list`.");
  OnVerb(list, command, std::make_shared<SessionListFlags>(), RunSessionList);
}

}  // namespace agmm
