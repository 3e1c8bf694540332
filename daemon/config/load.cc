// Loads configurations from a file, or derives them from the machine.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/config/config.h"
#include "kernels/base/cores.h"
#include "kernels/base/hash.h"
#include "kernels/base/read_file.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/base/usable_memory.h"

namespace agmm {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxDefaultDevices = 8;
constexpr int64_t kMaxDefaultHeap = int64_t{64} << 30;

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

std::string JournalPath(const Config& config) {
  if (config.journal == kNoJournal) return "";
  if (!config.journal.empty()) return config.journal;
  // systemd separates several folders by colons.
  const char* state = std::getenv("STATE_DIRECTORY");
  if (state != nullptr && *state == '/')
    return absl::StrCat(std::string(state, std::strcspn(state, ":")), "/jobs");
  return config.socket.empty() ? "" : absl::StrCat(config.socket, ".jobs");
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

}  // namespace agmm
