// agmmctl status: the world, its devices and their memory.
#include <CLI/App.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "client/ctl/table.h"
#include "client/ctl/verbs.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

using Json = nlohmann::ordered_json;

const char* Name(v1::NodeStatus::State state) {
  switch (state) {
    case v1::NodeStatus::STATE_MISSING:
      return "missing";
    case v1::NodeStatus::STATE_JOINING:
      return "joining";
    case v1::NodeStatus::STATE_READY:
      return "ready";
    default:
      return "unknown";
  }
}

// {"cluster", "version", "generation", "ready", "reason", "insecure", "config_hash", "endpoint",
//  "answering_node", "sequencer_node",
//  "nodes": [{"node", "name", "address", "state": "missing" | "joining" | "ready", "incarnation",
//             "devices": [{"rank", "kind", "description", "threads", "heap_bytes",
//                          "heap_free_bytes", "heap_largest_free_bytes", "tensor_bytes",
//                          "workspace_bytes", "packed_bytes"}]}],
//  "metrics": {name: value}}
Json ToJson(const v1::GetStatusResponse& status, const std::string& endpoint) {
  Json nodes = Json::array(), metrics = Json::object();
  for (const v1::NodeStatus& node : status.nodes()) {
    Json devices = Json::array();
    for (const v1::DeviceStatus& device : node.devices()) {
      devices.push_back({{"rank", device.rank()},
                         {"kind", device.kind()},
                         {"description", device.description()},
                         {"threads", device.thread_count()},
                         {"heap_bytes", device.heap_bytes()},
                         {"heap_free_bytes", device.heap_free_bytes()},
                         {"heap_largest_free_bytes", device.heap_largest_free_bytes()},
                         {"tensor_bytes", device.tensor_bytes()},
                         {"workspace_bytes", device.workspace_bytes()},
                         {"packed_bytes", device.packed_bytes()}});
    }
    nodes.push_back({{"node", node.index()},
                     {"name", node.name()},
                     {"address", node.address()},
                     {"state", Name(node.state())},
                     {"incarnation", node.incarnation()},
                     {"devices", std::move(devices)}});
  }
  for (const v1::Metric& metric : status.metrics()) metrics[metric.name()] = metric.value();
  return {{"cluster", status.cluster()},
          {"version", status.version()},
          {"generation", status.generation()},
          {"ready", status.ready()},
          {"reason", status.reason()},
          {"insecure", status.insecure()},
          {"config_hash", status.config_hash()},
          {"endpoint", endpoint},
          {"answering_node", status.answering_node()},
          {"sequencer_node", status.sequencer_node()},
          {"nodes", std::move(nodes)},
          {"metrics", std::move(metrics)}};
}

std::string Ranks(const v1::NodeStatus& node) {
  if (node.devices().empty()) return "-";
  const int first = node.devices(0).rank(), last = node.devices(node.devices_size() - 1).rank();
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

std::string Mebibytes(int64_t bytes) { return absl::StrFormat("%.1f", bytes / 1048576.0); }

void PrintForPeople(const v1::GetStatusResponse& status) {
  std::cout << "world " << status.cluster() << "  generation " << status.generation() << "  "
            << (status.ready() ? "ready" : "not ready: " + status.reason()) << "\n";
  if (status.insecure()) {
    std::cout << "insecure: the daemons listen on TCP without protection; whoever reaches their "
                 "ports can "
                 "use them\n";
  }
  Table nodes({{"node"},
               {"name", "", true},
               {"address", "", true},
               {"state", "", true},
               {"incarnation", "", true},
               {"ranks", "", true}});
  Table devices({{"rank"},
                 {"node", "", true},
                 {"kind", "", true},
                 {"description", "", true},
                 {"heap", "MiB"},
                 {"free", "MiB"},
                 {"largest free", "MiB"},
                 {"tensors", "MiB"},
                 {"workspace", "MiB"},
                 {"packed", "MiB"}});
  bool any_device = false;
  for (const v1::NodeStatus& node : status.nodes()) {
    nodes.AddRow({absl::StrCat(node.index()), node.name(), node.address(), Name(node.state()),
                  node.incarnation().empty() ? "-" : node.incarnation().substr(0, 8), Ranks(node)});
    for (const v1::DeviceStatus& device : node.devices()) {
      any_device = true;
      devices.AddRow({absl::StrCat(device.rank()), node.name(), device.kind(), device.description(),
                      Mebibytes(device.heap_bytes()), Mebibytes(device.heap_free_bytes()),
                      Mebibytes(device.heap_largest_free_bytes()), Mebibytes(device.tensor_bytes()),
                      Mebibytes(device.workspace_bytes()), Mebibytes(device.packed_bytes())});
    }
  }
  std::cout << "\n" << nodes.ToString();
  if (any_device) std::cout << "\n" << devices.ToString();
}

absl::Status RunStatus(const Options& options) {
  AGMM_ASSIGN_OR_RETURN(Endpoint endpoint, ResolveEndpoint(options.endpoint));
  Connection connection(std::move(endpoint));
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection.GetStatus());
  if (options.json)
    std::cout << ToJson(status, connection.endpoint()).dump() << "\n";
  else
    PrintForPeople(status);
  return absl::OkStatus();
}

}  // namespace

void AddStatus(CLI::App& app, const Options& options, Action* action) {
  CLI::App* verb = app.add_subcommand("status", "Show the world, its devices and their memory");
  verb->callback([&options, action] { *action = [&options] { return RunStatus(options); }; });
}

}  // namespace agmm
