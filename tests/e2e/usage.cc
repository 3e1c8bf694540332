#include "tests/e2e/usage.h"

#include <dirent.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace agmm {
namespace {

int Descriptors(pid_t pid) {
  DIR* directory = opendir(absl::StrCat("/proc/", pid, "/fd").c_str());
  if (directory == nullptr) return -1;
  int count = -2;  // "." and ".."
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

}  // namespace

int64_t ProcessField(pid_t pid, const std::string& field) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string word;
  int64_t value = 0;
  while (file >> word)
    if (word == field + ":" && file >> value) return value;
  return -1;
}

Usage UsageOf(World& world, int node) {
  Usage usage;
  const pid_t pid = world.daemon(node).pid();
  usage.descriptors = Descriptors(pid);
  usage.threads = ProcessField(pid, "Threads");
  const v1::GetStatusResponse status = world.Status(node);
  usage.tensor_bytes = TensorBytes(status);
  for (const v1::NodeStatus& other : status.nodes())
    for (const v1::DeviceStatus& device : other.devices())
      usage.workspace_bytes = std::max<int64_t>(usage.workspace_bytes, device.workspace_bytes());
  usage.staging_bytes = static_cast<int64_t>(MetricOf(status, "transport_staging_bytes"));
  return usage;
}

void PrintTo(const Usage& usage, std::ostream* out) {
  *out << absl::StrFormat(
      "%d descriptors, %d threads, %d B in tensors, %d B in workspaces, %d B staged",
      usage.descriptors, usage.threads, usage.tensor_bytes, usage.workspace_bytes,
      usage.staging_bytes);
}

int64_t TensorBytes(const v1::GetStatusResponse& status) {
  int64_t bytes = 0;
  for (const v1::NodeStatus& node : status.nodes())
    for (const v1::DeviceStatus& device : node.devices()) bytes += device.tensor_bytes();
  return bytes;
}

}  // namespace agmm
