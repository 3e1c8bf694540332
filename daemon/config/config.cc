#include "daemon/config/config.h"

#include <google/protobuf/text_format.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "daemon/config/config.pb.h"
#include "kernels/base/hash.h"
#include "kernels/base/host_limits.h"
#include "kernels/base/host_port.h"
#include "kernels/base/read_file.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "proto/convert/first_text_error.h"

namespace agmm {
namespace {

using google::protobuf::Message;
using google::protobuf::TextFormat;
using Tree = TextFormat::ParseInfoTree;

constexpr int kMaxPort = 65535;
constexpr int kMaxDevices = 1024;
constexpr int kMaxThreads = 4096;
constexpr int kMaxSessions = 1'000'000;
// The share of one owner, which is half of this, holds two of the largest chunks.
constexpr int64_t kMinTransferMemory = int64_t{16} << 20;
constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxDefaultDevices = 8;
constexpr int64_t kMaxDefaultHeap = int64_t{64} << 30;

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
  absl::Status CheckRange(const std::string& name, int value, int min, int max,
                          absl::string_view next) const {
    if (value >= min && value <= max) return absl::OkStatus();
    return Error(name, absl::StrFormat("%d is outside [%d, %d]; %s", value, min, max, next));
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
  AGMM_RETURN_IF_ERROR(
      at.CheckRange("peer_port", port, 1, kMaxPort, "give a free port of the first node's host"));
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
    AGMM_RETURN_IF_ERROR(here.CheckRange("devices", node.devices(), 1, kMaxDevices,
                                         "say how many devices the node has"));
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
  for (const auto& [field, is_set] : {std::pair{"gpu", device.gpu() != 0},
                                      {"shared_gpu", device.shared_gpu()},
                                      {"cublaslt_only", device.cublaslt_only()},
                                      {"trace_chunks", device.trace_chunks()}}) {
    if (!cuda && is_set) return at.Error(field, "belongs to cuda devices; leave it out");
  }
  AGMM_RETURN_IF_ERROR(
      at.CheckRange("gpu", device.gpu(), 0, kMaxDevices - 1, "give the number of a GPU"));
  AGMM_RETURN_IF_ERROR(at.CheckRange("threads", device.threads(), 0, kMaxThreads,
                                     "give a number in this range, or leave it out for 1"));
  if (device.heap().empty()) return at.Error("heap", "is missing; write for example \"4GiB\"");
  const absl::StatusOr<int64_t> heap = ParseBytes(device.heap());
  AGMM_RETURN_IF_ERROR(at.Check("heap", heap.status()));
  if (*heap < 4096)
    return at.Error("heap", absl::StrFormat("%d bytes are less than a page, 4096", *heap));
  config->devices.push_back({device.kind(), std::max(1, device.threads()), *heap, device.gpu(),
                             device.shared_gpu(), device.cublaslt_only(), device.trace_chunks()});
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

// Reads where the daemon listens for clients and for the other daemons.
absl::Status ReadListen(const config::Local& local, const Section& at, Config* config) {
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
  return absl::OkStatus();
}

absl::Status ReadTransport(const config::Local& local, const Section& at, Config* config) {
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
  if (!local.transport_ports().empty()) {
    const std::vector<absl::string_view> ends = absl::StrSplit(local.transport_ports(), '-');
    int& first = config->first_transport_port;
    int& last = config->last_transport_port;
    if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) ||
        !absl::SimpleAtoi(ends[1], &last) || first < 1 || last > kMaxPort || first > last) {
      return at.Error("transport_ports",
                      absl::StrFormat("\"%s\" is not a range of ports; write for example "
                                      "\"7200-7299\"",
                                      local.transport_ports()));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadLocal(const config::Local& local, const Section& at, Config* config) {
  AGMM_RETURN_IF_ERROR(ReadDevices(local, at, config));
  AGMM_RETURN_IF_ERROR(ReadListen(local, at, config));
  AGMM_RETURN_IF_ERROR(ReadTransport(local, at, config));
  config->secret_file = local.secret();
  AGMM_RETURN_IF_ERROR(at.CheckRange("sessions", local.sessions(), 0, kMaxSessions,
                                     "give a number in this range, or leave it out for 4096"));
  if (local.sessions() > 0) config->max_sessions = local.sessions();
  if (!local.journal().empty() && local.journal() != kNoJournal && local.journal().front() != '/') {
    return at.Error("journal",
                    absl::StrFormat("\"%s\" is not an absolute path; give one, or \"%s\"",
                                    local.journal(), kNoJournal));
  }
  config->journal = local.journal();
  if (!local.machines().empty() && local.machines() != kNoJournal &&
      local.machines().front() != '/') {
    return at.Error("machines",
                    absl::StrFormat("\"%s\" is not an absolute path; give one, or \"%s\"",
                                    local.machines(), kNoJournal));
  }
  config->machines = local.machines();
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

absl::StatusOr<std::string> DefaultSocket() {
  if (geteuid() == 0) return std::string("/run/agmm/agmmd.sock");
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime == nullptr || *runtime == '\0') {
    return absl::FailedPreconditionError(
        "XDG_RUNTIME_DIR, the directory for the socket, is not set; give --socket PATH");
  }
  return absl::StrCat(runtime, "/agmm/agmmd.sock");
}

bool IsOwnGroup(gid_t group) {
  std::vector<gid_t> groups(std::max(0, getgroups(0, nullptr)));
  groups.resize(std::max(0, getgroups(static_cast<int>(groups.size()), groups.data())));
  return group == getegid() || std::find(groups.begin(), groups.end(), group) != groups.end();
}

// Checks that no other user can read or replace the file. The group of the daemon may read it,
// because that is how Kubernetes gives a secret to a user other than root.
absl::Status CheckMode(const std::string& what, const struct stat& info) {
  const auto mode = info.st_mode & 07777;
  if ((mode & 027) == 0 && ((mode & 040) == 0 || IsOwnGroup(info.st_gid))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s has mode %o and group %d, so that other users can use it; give a file that the daemon's "
      "user alone can read and write (mode 600), or its group can read (mode 440 or 640)",
      what, mode, info.st_gid));
}

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  constexpr size_t kLeast = 16, kMost = 4096;
  const std::string what = absl::StrCat("the secret ", path);
  AGMM_ASSIGN_OR_RETURN(FileContents file, ReadFileUpTo(path, kMost + 1, what));
  AGMM_RETURN_IF_ERROR(CheckMode(what, file.info));
  if (file.bytes.size() < kLeast || file.bytes.size() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %s%d bytes; it needs %d to %d, the same on all nodes", what,
                        file.bytes.size() > kMost ? "over " : "",
                        std::min(file.bytes.size(), kMost), kLeast, kMost));
  }
  return std::move(file.bytes);
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
  FirstTextError error(file);
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

absl::StatusOr<Config> LoadConfig(const std::string& file, const NodeNames& names) {
  AGMM_ASSIGN_OR_RETURN(const FileContents read, ReadFileUpTo(file, kMaxConfigBytes + 1, file));
  if (read.bytes.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has more than %s, the bound of a configuration; give another file",
                        file, FormatBytes(kMaxConfigBytes)));
  }
  AGMM_ASSIGN_OR_RETURN(Config config, ParseConfig(read.bytes, file, names));
  if (config.nodes.size() == 1) return config;
  if (config.secret_file.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: local.secret: is missing; a world of several nodes needs a file of random bytes, the "
        "same on all of them. Make it with: (umask 077; head -c 32 /dev/urandom >world.secret)",
        file));
  }
  config.secret_file = std::filesystem::path(file).parent_path() / config.secret_file;
  AGMM_ASSIGN_OR_RETURN(config.secret, ReadSecret(config.secret_file));
  return config;
}

namespace {

// Returns the path `given`, or a default that ends in `name`; empty for none.
std::string StatePath(const Config& config, const std::string& given, const char* name) {
  if (given == kNoJournal) return "";
  if (!given.empty()) return given;
  // systemd separates several folders by colons.
  const char* state = std::getenv("STATE_DIRECTORY");
  if (state != nullptr && *state == '/')
    return absl::StrCat(std::string(state, std::strcspn(state, ":")), "/", name);
  return config.socket.empty() ? "" : absl::StrCat(config.socket, ".", name);
}

}  // namespace

std::string JournalPath(const Config& config) { return StatePath(config, config.journal, "jobs"); }

std::string MachineFolderPath(const Config& config) {
  return StatePath(config, config.machines, "machines");
}

int64_t DefaultTransferMemory(int64_t memory_bytes) {
  return std::clamp(memory_bytes / 8, int64_t{64} << 20, int64_t{512} << 20);
}

std::vector<DeviceConfig> DefaultDevices(int count, int cores, int64_t memory_bytes) {
  const int64_t heap = std::min(memory_bytes / 4 / count, kMaxDefaultHeap) / 4096 * 4096;
  std::vector<DeviceConfig> devices;
  for (int i = 0; i < count; ++i)
    devices.push_back({"cpu", std::max(1, cores / count + (i < cores % count ? 1 : 0)), heap});
  return devices;
}

Config DefaultConfigFor(int cores, int64_t memory_bytes, const std::string& socket) {
  Config config;
  config.cluster = "local";
  const int devices = std::clamp(cores, 1, kMaxDefaultDevices);
  config.devices = DefaultDevices(devices, cores, memory_bytes);
  config.transfer_memory_bytes = DefaultTransferMemory(memory_bytes);
  config.nodes.push_back({"local", "", devices});
  config.hash = HashHex(Fnv1a(absl::StrCat("local ", devices)));
  config.socket = socket;
  return config;
}

absl::StatusOr<Config> DefaultConfig(const std::string& socket) {
  const absl::StatusOr<std::string> path = socket.empty() ? DefaultSocket() : socket;
  if (!path.ok()) return path.status();
  return DefaultConfigFor(UsableCores(), UsableMemory(), *path);
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
        device.kind == "cuda" ? absl::StrCat("gpu ", device.gpu, device.shared_gpu ? " shared" : "",
                                             device.cublaslt_only ? ", cuBLASLt only" : "",
                                             device.trace_chunks ? ", traces chunks" : "")
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
