#include "daemon/config/config.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <sys/un.h>

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "daemon/config/config.pb.h"
#include "kernels/base/cores.h"
#include "kernels/base/hash.h"
#include "kernels/base/host_port.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/base/usable_memory.h"

namespace agmm {
namespace {

using google::protobuf::Message;
using google::protobuf::TextFormat;
using Tree = TextFormat::ParseInfoTree;

constexpr int kMaxDevices = 1024;
constexpr int kMaxThreads = 4096;
constexpr int kMaxSessions = 1'000'000;
// The share of one owner, which is half of this, holds two of the largest chunks.
constexpr int64_t kMinTransferMemory = int64_t{16} << 20;

// Keeps the first error, which is the one to fix.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(const std::string& file) : file_(file) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& what) override {
    if (text_.empty()) text_ = absl::StrFormat("%s:%d:%d: %s", file_, line + 1, column + 1, what);
  }
  const std::string& text() const { return text_; }

 private:
  const std::string file_;
  std::string text_;
};

// One message of the file with its location: turns a wrong field into "file:line:column: field
// ...".
class Section {
 public:
  Section(const std::string& file, std::string path, const Message& message, const Tree* tree)
      : file_(file), path_(std::move(path)), message_(message), tree_(tree) {}

  // Points at field `name`, or at the file if the field is not set.
  absl::Status Error(const std::string& name, absl::string_view what) const {
    const auto* field = message_.GetDescriptor()->FindFieldByName(name);
    // A repeated field as a whole is located at its first entry.
    const auto at = tree_->GetLocation(field, field->is_repeated() ? 0 : -1);
    const std::string where =
        at.line < 0 ? file_ : absl::StrFormat("%s:%d:%d", file_, at.line + 1, at.column + 1);
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s", where, Path(name), what));
  }
  // The error of `value`, a check of field `name`.
  absl::Status Check(const std::string& name, const absl::Status& value) const {
    return value.ok() ? value : Error(name, value.message());
  }
  Section Nested(const std::string& name, const Message& message, int index = -1) const {
    const auto* field = message_.GetDescriptor()->FindFieldByName(name);
    const std::string path = index < 0 ? Path(name) : absl::StrFormat("%s[%d]", Path(name), index);
    return Section(file_, path, message, tree_->GetTreeForNested(field, index));
  }

 private:
  std::string Path(const std::string& name) const {
    return path_.empty() ? name : absl::StrCat(path_, ".", name);
  }
  const std::string file_, path_;
  const Message& message_;
  const Tree* const tree_;
};

// Parses an address at which other hosts find a daemon: one that has a single meaning on all of
// them.
absl::StatusOr<HostPort> ParseNodeAddress(absl::string_view text, int min_port) {
  AGMM_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(text, min_port));
  AGMM_RETURN_IF_ERROR(CheckHasOneMeaning(address.host));
  return address;
}

absl::Status CheckName(absl::string_view name) {
  for (char c : name) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') {
      return absl::InvalidArgumentError(
          absl::StrFormat("\"%s\" is not a name; use letters, digits, '-', '_' and '.'", name));
    }
  }
  if (name.empty()) return absl::InvalidArgumentError("is missing; give it a name");
  return absl::OkStatus();
}

absl::Status ReadPeerPort(const config::World& world, const Section& at, Config* config) {
  if (world.node_size() == 1) return absl::OkStatus();
  AGMM_ASSIGN_OR_RETURN(HostPort peers, ParseHostPort(world.node(0).address(), 1));
  const int port = world.peer_port() == 0 ? peers.port - 1 : world.peer_port();
  if (port < 1 || port > 65535)
    return at.Error("peer_port", absl::StrFormat("%d is outside [1, 65535]", port));
  peers.port = port;
  config->peer_address = peers.ToString();
  for (const config::Node& node : world.node()) {
    if (node.address() == config->peer_address) {
      return at.Error(
          "peer_port",
          absl::StrFormat("%d is the port of node %s for clients; use another port of %s's host",
                          port, node.name(), world.node(0).name()));
    }
  }
  return absl::OkStatus();
}

// Gives equal addresses in `world` equal text.
absl::Status ReadWorld(config::World& world, const Section& at, Config* config) {
  AGMM_RETURN_IF_ERROR(at.Check("cluster", CheckName(world.cluster())));
  if (world.node_size() == 0) return at.Error("node", "is missing; a world has at least one node");
  std::set<std::string> names, addresses;
  for (int i = 0; i < world.node_size(); ++i) {
    config::Node& node = *world.mutable_node(i);
    const Section here = at.Nested("node", node, i);
    AGMM_RETURN_IF_ERROR(here.Check("name", CheckName(node.name())));
    if (!names.insert(absl::AsciiStrToLower(node.name())).second) {
      return here.Error(
          "name", absl::StrFormat("\"%s\" appears twice; names must be unique, regardless of case",
                                  node.name()));
    }
    if (!node.address().empty() || world.node_size() > 1) {
      const int min_port = world.node_size() > 1 ? 1 : 0;
      const absl::StatusOr<HostPort> address = ParseNodeAddress(node.address(), min_port);
      AGMM_RETURN_IF_ERROR(here.Check("address", address.status()));
      node.set_address(address->ToString());
      if (world.node_size() > 1 && !addresses.insert(node.address()).second)
        return here.Error(
            "address",
            absl::StrFormat("\"%s\" appears twice; each daemon needs its own", node.address()));
    }
    if (node.devices() < 1 || node.devices() > kMaxDevices)
      return here.Error("devices",
                        absl::StrFormat("%d is outside [1, %d]; say how many devices the node has",
                                        node.devices(), kMaxDevices));
    config->nodes.push_back({node.name(), node.address(), node.devices()});
  }
  AGMM_RETURN_IF_ERROR(ReadPeerPort(world, at, config));
  if (!world.plan_cache().empty()) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(world.plan_cache());
    AGMM_RETURN_IF_ERROR(at.Check("plan_cache", bytes.status()));
    config->plan_cache_bytes = *bytes;
  }
  config->cluster = world.cluster();
  config->hash = HashHex(Fnv1a(world.SerializeAsString()));
  return absl::OkStatus();
}

absl::Status ReadDevice(const config::Device& device, const Section& at, Config* config) {
  const bool cuda = device.kind() == "cuda";
  if (!cuda && device.kind() != "cpu")
    return at.Error(
        "kind", absl::StrFormat("\"%s\" is not a device; use \"cpu\" or \"cuda\"", device.kind()));
  if (cuda && device.threads() != 0)
    return at.Error("threads", "belongs to cpu devices; leave it out");
  if (!cuda && (device.gpu() != 0 || device.shared_gpu()))
    return at.Error(device.gpu() != 0 ? "gpu" : "shared_gpu",
                    "belongs to cuda devices; leave it out");
  if (device.gpu() < 0 || device.gpu() >= kMaxDevices)
    return at.Error("gpu", absl::StrFormat("%d is outside [0, %d)", device.gpu(), kMaxDevices));
  if (device.threads() < 0 || device.threads() > kMaxThreads)
    return at.Error("threads",
                    absl::StrFormat("%d is outside [0, %d]", device.threads(), kMaxThreads));
  if (device.heap().empty()) return at.Error("heap", "is missing; write for example \"4GiB\"");
  const absl::StatusOr<int64_t> heap = ParseBytes(device.heap());
  AGMM_RETURN_IF_ERROR(at.Check("heap", heap.status()));
  if (*heap < 4096)
    return at.Error("heap", absl::StrFormat("%d bytes are less than a page, 4096", *heap));
  config->devices.push_back(
      {device.kind(), std::max(1, device.threads()), *heap, device.gpu(), device.shared_gpu()});
  return absl::OkStatus();
}

absl::Status ReadDevices(const config::Local& local, const Section& at, Config* config) {
  if (local.device_size() == 0) {
    config->devices = DefaultDevices(config->node().devices, UsableCores(), UsableMemory());
    return absl::OkStatus();
  }
  for (int i = 0; i < local.device_size(); ++i)
    AGMM_RETURN_IF_ERROR(
        ReadDevice(local.device(i), at.Nested("device", local.device(i), i), config));
  if (local.device_size() != config->node().devices) {
    return at.Error("device",
                    absl::StrFormat("%d are listed, but world.node[%d].devices is %d; make them "
                                    "equal, or omit all for devices that share the cores",
                                    local.device_size(), config->self, config->node().devices));
  }
  return absl::OkStatus();
}

// `world` and `at` are the places of the two blocks, for errors.
absl::Status ReadSelf(const config::Local& local, const NodeNames& names, const Section& world,
                      const Section& at, Config* config) {
  std::vector<std::string> nodes;
  for (const NodeConfig& node : config->nodes) nodes.push_back(node.name);
  const absl::StatusOr<OwnNode> own = FindOwnNode(nodes, local.node(), names);
  const bool configured = names.option.empty() && names.variable.empty() && !local.node().empty();
  AGMM_RETURN_IF_ERROR((configured ? at : world).Check("node", own.status()));
  config->self = own->index;
  config->named_by = own->named_by;
  return absl::OkStatus();
}

absl::Status ReadLocal(const config::Local& local, const Section& at, Config* config) {
  AGMM_RETURN_IF_ERROR(ReadDevices(local, at, config));
  if (!local.socket().empty())
    AGMM_RETURN_IF_ERROR(at.Check("socket", CheckSocketPath(local.socket())));
  config->socket = local.socket();
  config->listen = local.listen().empty() ? config->node().address : local.listen();
  if (config->listen.empty() && config->socket.empty())
    return at.Error("socket", "is missing, and the node has no address either; set one of them");
  if (!config->listen.empty()) {
    absl::StatusOr<HostPort> listen = ParseHostPort(config->listen, 0);
    AGMM_RETURN_IF_ERROR(at.Check("listen", listen.status()));
    config->listen = listen->ToString();
    if (config->is_sequencer() && !config->peer_address.empty()) {
      AGMM_ASSIGN_OR_RETURN(const HostPort peers, ParseHostPort(config->peer_address, 1));
      listen->port = peers.port;
      config->listen_peers = listen->ToString();
    }
  }
  if (config->listen_peers == config->listen && !config->listen.empty()) {
    return at.Error(
        "listen",
        absl::StrFormat("%s is the port for the other daemons (world.peer_port); use another port",
                        config->listen));
  }
  if (!local.transport_address().empty()) {
    if (ParseHostPort(local.transport_address(), 0).ok()) {
      return at.Error("transport_address",
                      absl::StrFormat("\"%s\" has a port; give only the host, and its ports as "
                                      "transport_ports: \"7200-7299\"",
                                      local.transport_address()));
    }
    const absl::StatusOr<std::string> host = ParseHost(local.transport_address());
    AGMM_RETURN_IF_ERROR(at.Check("transport_address", host.status()));
    AGMM_RETURN_IF_ERROR(at.Check("transport_address", CheckHasOneMeaning(*host)));
    config->transport_address = *host;
  } else if (!config->node().address.empty()) {
    AGMM_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(config->node().address, 0));
    config->transport_address = address.host;
  }
  config->secret_file = local.secret();
  if (!local.transport_ports().empty()) {
    const std::vector<absl::string_view> ends = absl::StrSplit(local.transport_ports(), '-');
    int& first = config->first_transport_port;
    int& last = config->last_transport_port;
    if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) ||
        !absl::SimpleAtoi(ends[1], &last) || first < 1 || last > 65535 || first > last) {
      return at.Error("transport_ports",
                      absl::StrFormat("\"%s\" is not a range of ports; write for example "
                                      "\"7200-7299\"",
                                      local.transport_ports()));
    }
  }
  if (local.sessions() < 0 || local.sessions() > kMaxSessions) {
    return at.Error("sessions",
                    absl::StrFormat("%d is outside [0, %d]", local.sessions(), kMaxSessions));
  }
  if (local.sessions() > 0) config->max_sessions = local.sessions();
  if (!local.journal().empty() && local.journal() != kNoJournal && local.journal().front() != '/') {
    return at.Error("journal",
                    absl::StrFormat("\"%s\" is not an absolute path; give one, or \"%s\"",
                                    local.journal(), kNoJournal));
  }
  config->journal = local.journal();
  config->transfer_memory_bytes = DefaultTransferMemory(UsableMemory());
  if (!local.transfer_memory().empty()) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(local.transfer_memory());
    AGMM_RETURN_IF_ERROR(at.Check("transfer_memory", bytes.status()));
    if (*bytes < kMinTransferMemory) {
      return at.Error("transfer_memory",
                      absl::StrFormat("%s is too little for a few transfers; give at least %s",
                                      FormatBytes(*bytes), FormatBytes(kMinTransferMemory)));
    }
    config->transfer_memory_bytes = *bytes;
  }
  if (!local.log_level().empty()) {
    AGMM_RETURN_IF_ERROR(at.Check("log_level", CheckLogLevel(local.log_level())));
    config->log_level = local.log_level();
  }
  return absl::OkStatus();
}

}  // namespace

std::set<int> Config::listen_ports() const {
  std::set<int> ports;
  for (const std::string& address : {listen, listen_peers}) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(address, 0);
    if (parsed.ok()) ports.insert(parsed->port);
  }
  return ports;
}

std::string Config::Describe(int node) const {
  const std::string& address = nodes[node].address;
  return absl::StrCat("node ", nodes[node].name,
                      address.empty() ? "" : absl::StrFormat(" (%s)", address));
}

int Config::first_rank(int node) const {
  int rank = 0;
  for (int i = 0; i < node; ++i) rank += nodes[i].devices;
  return rank;
}

std::vector<int> Config::node_of_rank() const {
  std::vector<int> result;
  for (size_t i = 0; i < nodes.size(); ++i)
    result.insert(result.end(), nodes[i].devices, static_cast<int>(i));
  return result;
}

absl::Status CheckSocketPath(absl::string_view path) {
  constexpr size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;
  if (path.size() > kMaxPath || path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is not a socket path: it must be absolute and have at most %d characters", path,
        kMaxPath));
  }
  return absl::OkStatus();
}

absl::Status CheckLogLevel(absl::string_view level) {
  for (absl::string_view known : {"debug", "info", "warn", "error"})
    if (level == known) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("\"%s\" is not a level; use debug, info, warn or error", level));
}

absl::StatusOr<Config> ParseConfig(absl::string_view text, const std::string& file,
                                   const NodeNames& names) {
  config::File message;
  Tree tree;
  FirstError error(file);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.WriteLocationsTo(&tree);
  if (!parser.ParseFromString(std::string(text), &message))
    return absl::InvalidArgumentError(error.text());

  const Section root(file, "", message, &tree);
  if (!message.has_world()) return root.Error("world", "is missing");
  if (!message.has_local()) return root.Error("local", "is missing");
  Config config;
  const Section world = root.Nested("world", message.world());
  const Section local = root.Nested("local", message.local());
  AGMM_RETURN_IF_ERROR(ReadWorld(*message.mutable_world(), world, &config));
  AGMM_RETURN_IF_ERROR(ReadSelf(message.local(), names, world, local, &config));
  AGMM_RETURN_IF_ERROR(ReadLocal(message.local(), local, &config));
  return config;
}

std::string Summary(const Config& config) {
  std::string text = absl::StrFormat("cluster %s, config hash %s\n", config.cluster, config.hash);
  const std::string named =
      config.named_by.empty() ? "" : absl::StrFormat(" (named by %s)", config.named_by);
  for (size_t i = 0; i < config.nodes.size(); ++i) {
    const NodeConfig& node = config.nodes[i];
    const int first = config.first_rank(static_cast<int>(i));
    const std::string ranks =
        node.devices == 1 ? absl::StrCat("rank ", first)
                          : absl::StrFormat("ranks %d to %d", first, first + node.devices - 1);
    absl::StrAppendFormat(&text, "node %d %s at %s: %s%s%s\n", i, node.name,
                          node.address.empty() ? "(no address)" : node.address, ranks,
                          i == 0 ? ", sequencer" : "",
                          static_cast<int>(i) == config.self ? ", this daemon" + named : "");
  }
  for (const DeviceConfig& device : config.devices) {
    const std::string part =
        device.kind == "cuda" ? absl::StrCat("gpu ", device.gpu, device.shared_gpu ? " shared" : "")
                              : Counted(device.threads, "thread");
    absl::StrAppendFormat(&text, "device %s: %s, heap %s\n", device.kind, part,
                          FormatBytes(device.heap_bytes));
  }
  absl::StrAppendFormat(&text, "plan_cache %s, transfer_memory %s\n",
                        FormatBytes(config.plan_cache_bytes),
                        FormatBytes(config.transfer_memory_bytes));
  if (!config.secret.empty()) absl::StrAppendFormat(&text, "secret %s\n", config.secret_file);
  if (!config.socket.empty()) absl::StrAppendFormat(&text, "socket %s\n", config.socket);
  if (!config.listen.empty()) absl::StrAppendFormat(&text, "listen %s (insecure)\n", config.listen);
  if (!config.listen_peers.empty())
    absl::StrAppendFormat(&text, "listen for daemons %s\n", config.listen_peers);
  return text;
}

}  // namespace agmm
