// A daemon's configuration: the world it belongs to, and its own part of it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/own_node.h"

namespace agmm {

// The value of local.journal that disables the journal, and of local.machines that disables
// measurements that nothing asks for.
inline constexpr char kNoJournal[] = "none";

struct NodeConfig {
  std::string name;
  std::string address;  // host:port; may be empty in a world of one node
  int devices = 0;
  std::vector<std::string> ips;  // of the host of `address`; see ResolveNodes
};

struct DeviceConfig {
  std::string kind;  // "cpu" or "cuda"
  int threads = 1;   // of a cpu device
  int64_t heap_bytes = 0;
  int gpu = 0;                 // of a cuda device, its number
  bool shared_gpu = false;     // other daemons may use it, too
  bool cublaslt_only = false;  // no kernels of agmm for products
  bool trace_chunks = false;   // kernels record the times of chunks
};

// Checked: every index is in range and every required field is set.
struct Config {
  std::string cluster;
  std::vector<NodeConfig> nodes;  // nodes[0] is the sequencer
  int64_t plan_cache_bytes = int64_t{256} << 20;
  std::string peer_address;  // host:port where the first node listens for the other daemons
  std::string hash;          // 16 hex digits over the world block; equal on all daemons of a world

  int self = 0;                       // index into nodes
  std::string named_by;               // source of the node's name: "--node", ...; may be empty
  std::string version;                // of this program, for people
  std::vector<DeviceConfig> devices;  // of this node
  std::string socket;                 // path, or empty
  std::string listen;                 // host:port to bind, or empty: no TCP
  std::string listen_peers;           // host:port for the other daemons; only on the first node
  std::string transport_address;      // host
  std::string log_level = "info";
  int max_sessions = 4096;
  std::string journal;   // path without ".0" and ".1"; "none", or empty: the default
  std::string machines;  // path of a folder; "none", or empty: the default
  int64_t transfer_memory_bytes = int64_t{512} << 20;
  std::string secret_file;  // path; LoadConfig adds the configuration's folder
  std::string secret;       // its contents, the same on all nodes
  int first_transport_port = 0, last_transport_port = 0;  // 0: any

  const NodeConfig& node() const { return nodes[self]; }
  // "node b (127.0.0.1:7102)".
  std::string Describe(int node) const;
  bool is_sequencer() const { return self == 0; }
  // World rank of the first device of `node`.
  int first_rank(int node) const;
  std::vector<int> node_of_rank() const;
  // The ports of `listen` and `listen_peers`.
  std::set<int> listen_ports() const;
};

// `file` names the source in errors; `names` are the names of this daemon's node that come from
// elsewhere. Errors: INVALID_ARGUMENT, one line: "file:line:column: what".
absl::StatusOr<Config> ParseConfig(absl::string_view text, const std::string& file,
                                   const NodeNames& names = {});
// Errors: those of ParseConfig and of ReadFileUpTo.
absl::StatusOr<Config> LoadConfig(const std::string& file, const NodeNames& names = {});

// The configuration without a file: a world of one node, "local", on a unix socket, with cpu
// devices that share the machine's cores. An empty `socket` stands for /run/agmm/agmmd.sock for
// root, and a path in XDG_RUNTIME_DIR for others. Errors: FAILED_PRECONDITION if that is not set.
absl::StatusOr<Config> DefaultConfig(const std::string& socket);

// Like DefaultConfig, for a machine with these cores and this memory: at most 8 devices.
Config DefaultConfigFor(int cores, int64_t memory_bytes, const std::string& socket);

// Returns `count` cpu devices that share `cores`; a quarter of the memory becomes heaps of at most
// 64 GiB each.
std::vector<DeviceConfig> DefaultDevices(int count, int cores, int64_t memory_bytes);

// The default of transfer_memory on a host with this much memory.
int64_t DefaultTransferMemory(int64_t memory_bytes);

// Returns the path of node 0's journal of jobs; empty if it keeps none.
std::string JournalPath(const Config& config);

// Returns the folder of node 0's measurements; empty if it keeps none.
std::string MachineFolderPath(const Config& config);

// Checks a --socket path or a --log-level. Errors: INVALID_ARGUMENT.
absl::Status CheckSocketPath(absl::string_view path);
absl::Status CheckLogLevel(absl::string_view level);

// A few lines for people.
std::string Summary(const Config& config);

}  // namespace agmm
