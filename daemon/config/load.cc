// Loads configurations from a file, or derives them from the machine.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/config/config.h"
#include "kernels/base/cores.h"
#include "kernels/base/hash.h"

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

}  // namespace

absl::StatusOr<Config> LoadConfig(const std::string& file) {
  errno = 0;
  struct stat info;
  std::ifstream stream(file);
  if (!stream || stat(file.c_str(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrFormat("%s cannot be read", file));
  if (S_ISDIR(info.st_mode))
    return absl::InvalidArgumentError(absl::StrFormat("%s is a directory; give a file", file));
  std::stringstream text;
  text << stream.rdbuf();
  return ParseConfig(text.str(), file);
}

Config DefaultConfigFor(int cores, int64_t memory_bytes, const std::string& socket) {
  Config config;
  config.cluster = "local";
  const int devices = std::clamp(cores, 1, kMaxDefaultDevices);
  const int64_t heap = std::min(memory_bytes / 4 / devices, kMaxDefaultHeap) / 4096 * 4096;
  for (int i = 0; i < devices; ++i)
    config.devices.push_back(
        {"cpu", std::max(1, cores / devices + (i < cores % devices ? 1 : 0)), heap});
  config.nodes.push_back({"local", "", devices});
  config.hash = HashHex(Fnv1a(absl::StrCat("local ", devices)));
  config.socket = socket;
  return config;
}

absl::StatusOr<Config> DefaultConfig(const std::string& socket) {
  const absl::StatusOr<std::string> path = socket.empty() ? DefaultSocket() : socket;
  if (!path.ok()) return path.status();
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return DefaultConfigFor(UsableCores(), memory, *path);
}

}  // namespace agmm
