#include "daemon/config/config.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>
#include <sys/un.h>

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "daemon/config/config.pb.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

using google::protobuf::Message;
using google::protobuf::TextFormat;
using Tree = TextFormat::ParseInfoTree;

constexpr int kMaxDevices = 1024;
constexpr int kMaxThreads = 4096;

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

// One message of the file, with where it stands: turns a wrong field into "file:line:column: field
// ...".
class Part {
 public:
  Part(const std::string& file, std::string path, const Message& message, const Tree* tree)
      : file_(file), path_(std::move(path)), message_(message), tree_(tree) {}

  // Points at field `name` (entry `index` of a repeated one), or at the file where it is not set.
  absl::Status Error(const std::string& name, absl::string_view what, int index = -1) const {
    std::string where = file_;
    const auto* field = message_.GetDescriptor()->FindFieldByName(name);
    const bool there =
        !field->is_repeated() || message_.GetReflection()->FieldSize(message_, field) > 0;
    if (tree_ != nullptr && there) {
      // Of a repeated field as a whole, where it begins.
      const auto at = tree_->GetLocation(field, field->is_repeated() ? std::max(0, index) : -1);
      if (at.line >= 0) where = absl::StrFormat("%s:%d:%d", file_, at.line + 1, at.column + 1);
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s: %s", where, Path(name, index), what));
  }
  Part Nested(const std::string& name, const Message& message, int index = -1) const {
    const Tree* tree = nullptr;
    if (tree_ != nullptr) {
      const auto* field = message_.GetDescriptor()->FindFieldByName(name);
      tree = tree_->GetTreeForNested(field, index);
    }
    return Part(file_, Path(name, index), message, tree);
  }

 private:
  std::string Path(const std::string& name, int index) const {
    return absl::StrCat(path_, path_.empty() ? "" : ".", name,
                        index < 0 ? "" : absl::StrFormat("[%d]", index));
  }
  const std::string file_, path_;
  const Message& message_;
  const Tree* const tree_;
};

// The host of "host:port" or "[v6]:port". Port 0, any free one, is of use only to who binds it.
absl::StatusOr<std::string> HostOf(absl::string_view address, uint32_t min_port) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < min_port || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is not host:port; write for example 10.0.0.1:7101", address));
  }
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return std::string(host);
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

std::string WorldHash(const config::World& world) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    world.SerializeToCodedStream(&coded);
  }
  return HashHex(Fnv1a(bytes));
}

absl::Status ReadWorld(const config::World& world, const Part& at, Config* config) {
  if (const absl::Status name = CheckName(world.cluster()); !name.ok())
    return at.Error("cluster", name.message());
  if (world.node_size() == 0) return at.Error("node", "is missing; a world has at least one node");
  std::set<std::string> names, addresses;
  for (int i = 0; i < world.node_size(); ++i) {
    const config::Node& node = world.node(i);
    const Part here = at.Nested("node", node, i);
    if (const absl::Status name = CheckName(node.name()); !name.ok())
      return here.Error("name", name.message());
    if (!names.insert(node.name()).second)
      return here.Error("name",
                        absl::StrFormat("\"%s\" stands twice; names are unique", node.name()));
    if (!node.address().empty() || world.node_size() > 1) {
      const absl::StatusOr<std::string> host =
          HostOf(node.address(), world.node_size() > 1 ? 1 : 0);
      if (!host.ok()) return here.Error("address", host.status().message());
      if (world.node_size() > 1 && !addresses.insert(node.address()).second)
        return here.Error("address", absl::StrFormat("\"%s\" stands twice; each daemon has its own",
                                                     node.address()));
    }
    if (node.devices() < 1 || node.devices() > kMaxDevices)
      return here.Error("devices",
                        absl::StrFormat("%d is outside [1, %d]; say how many devices the node has",
                                        node.devices(), kMaxDevices));
    config->nodes.push_back({node.name(), node.address(), node.devices()});
  }
  config->cluster = world.cluster();
  config->hash = WorldHash(world);
  return absl::OkStatus();
}

absl::Status ReadDevice(const config::Device& device, const Part& at, Config* config) {
  if (device.kind() != "cpu")
    return at.Error(
        "kind", absl::StrFormat("\"%s\" is not a device; this build has \"cpu\"", device.kind()));
  if (device.threads() < 0 || device.threads() > kMaxThreads)
    return at.Error("threads",
                    absl::StrFormat("%d is outside [0, %d]", device.threads(), kMaxThreads));
  if (device.heap().empty()) return at.Error("heap", "is missing; write for example \"4GiB\"");
  const absl::StatusOr<int64_t> heap = ParseBytes(device.heap());
  if (!heap.ok()) return at.Error("heap", heap.status().message());
  if (*heap < 4096)
    return at.Error("heap", absl::StrFormat("%d bytes are less than a page, 4096", *heap));
  config->devices.push_back({"cpu", std::max(1, device.threads()), *heap});
  return absl::OkStatus();
}

absl::Status ReadLocal(const config::Local& local, const Part& at, Config* config) {
  std::vector<std::string> names;
  config->self = -1;
  for (size_t i = 0; i < config->nodes.size(); ++i) {
    names.push_back(config->nodes[i].name);
    if (names.back() == local.node()) config->self = static_cast<int>(i);
  }
  if (config->self < 0) {
    return at.Error("node", absl::StrFormat("\"%s\" is none of the world's nodes: %s", local.node(),
                                            absl::StrJoin(names, ", ")));
  }
  for (int i = 0; i < local.device_size(); ++i)
    AGMM_RETURN_IF_ERROR(
        ReadDevice(local.device(i), at.Nested("device", local.device(i), i), config));
  if (local.device_size() != config->node().devices) {
    return at.Error(
        "device",
        absl::StrFormat("%d stand here, but world.node[%d].devices says %d; make them equal",
                        local.device_size(), config->self, config->node().devices));
  }
  if (!local.socket().empty()) {
    if (const absl::Status path = CheckSocketPath(local.socket()); !path.ok())
      return at.Error("socket", path.message());
  }
  config->socket = local.socket();
  config->listen = local.listen().empty() ? config->node().address : local.listen();
  if (config->listen.empty() && config->socket.empty())
    return at.Error("socket", "is missing, and the node has no address either; set one of them");
  if (!config->listen.empty()) {
    const absl::StatusOr<std::string> host = HostOf(config->listen, 0);
    if (!host.ok()) return at.Error("listen", host.status().message());
  }
  config->transport_address = local.transport_address();
  if (config->transport_address.empty() && !config->node().address.empty())
    config->transport_address = *HostOf(config->node().address, 0);
  if (!local.log_level().empty()) {
    if (const absl::Status level = CheckLogLevel(local.log_level()); !level.ok())
      return at.Error("log_level", level.message());
    config->log_level = local.log_level();
  }
  return absl::OkStatus();
}

}  // namespace

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

absl::StatusOr<Config> ParseConfig(absl::string_view text, const std::string& file) {
  config::File message;
  Tree tree;
  FirstError error(file);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.WriteLocationsTo(&tree);
  if (!parser.ParseFromString(std::string(text), &message))
    return absl::InvalidArgumentError(error.text());

  const Part root(file, "", message, &tree);
  if (!message.has_world()) return root.Error("world", "is missing");
  if (!message.has_local()) return root.Error("local", "is missing");
  Config config;
  AGMM_RETURN_IF_ERROR(ReadWorld(message.world(), root.Nested("world", message.world()), &config));
  AGMM_RETURN_IF_ERROR(ReadLocal(message.local(), root.Nested("local", message.local()), &config));
  return config;
}

std::string Summary(const Config& config) {
  std::string text = absl::StrFormat("cluster %s, config hash %s\n", config.cluster, config.hash);
  for (size_t i = 0; i < config.nodes.size(); ++i) {
    const NodeConfig& node = config.nodes[i];
    const int first = config.first_rank(static_cast<int>(i));
    absl::StrAppendFormat(&text, "node %d %s at %s: ranks %d to %d%s%s\n", i, node.name,
                          node.address.empty() ? "(no address)" : node.address, first,
                          first + node.devices - 1, i == 0 ? ", sequencer" : "",
                          static_cast<int>(i) == config.self ? ", this daemon" : "");
  }
  for (const DeviceConfig& device : config.devices) {
    absl::StrAppendFormat(&text, "device %s: %d threads, heap %s\n", device.kind, device.threads,
                          FormatBytes(device.heap_bytes));
  }
  if (!config.socket.empty()) absl::StrAppendFormat(&text, "socket %s\n", config.socket);
  if (!config.listen.empty()) absl::StrAppendFormat(&text, "listen %s (insecure)\n", config.listen);
  return text;
}

}  // namespace agmm
