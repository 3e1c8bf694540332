// Loads configurations from a file, or derives them from the machine.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/config/config.h"
#include "kernels/base/cores.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/base/usable_memory.h"

namespace agmm {
namespace {

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

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  constexpr size_t kLeast = 16, kMost = 4096;
  struct stat info;
  std::ifstream stream(path, std::ios::binary);
  if (!stream || stat(path.c_str(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrFormat("the secret %s cannot be read", path));
  if ((info.st_mode & 077) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the secret %s has mode %o, so that other users can read it; run: chmod 600 %s", path,
        info.st_mode & 07777, path));
  }
  std::string secret(kMost + 1, '\0');
  stream.read(secret.data(), static_cast<std::streamsize>(secret.size()));
  secret.resize(stream.gcount());
  if (secret.size() < kLeast || secret.size() > kMost) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the secret %s has %s%d bytes; it needs %d to %d, the same on all nodes", path,
        secret.size() > kMost ? "over " : "", std::min(secret.size(), kMost), kLeast, kMost));
  }
  return secret;
}

}  // namespace

absl::StatusOr<Config> LoadConfig(const std::string& file, const NodeNames& names) {
  errno = 0;
  struct stat info;
  std::ifstream stream(file);
  if (!stream || stat(file.c_str(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrFormat("%s cannot be read", file));
  if (S_ISDIR(info.st_mode))
    return absl::InvalidArgumentError(absl::StrFormat("%s is a directory; give a file", file));
  std::stringstream text;
  text << stream.rdbuf();
  AGMM_ASSIGN_OR_RETURN(Config config, ParseConfig(text.str(), file, names));
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
  // Systemd separates several by colons.
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
