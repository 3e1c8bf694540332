#include "daemon/observe/process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/clock.h"
#include "kernels/base/memory.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double FileBytes(int fd) {
  constexpr double kBlock = 512;  // the unit of st_blocks on every file system
  struct stat status {};
  return fstat(fd, &status) == 0 ? kBlock * static_cast<double>(status.st_blocks) : 0;
}

double OpenFds() {
  std::error_code error;
  const std::filesystem::directory_iterator fds("/proc/self/fd", error);
  return error ? 0 : static_cast<double>(std::distance(fds, std::filesystem::directory_iterator()));
}

}  // namespace

std::string ProcessorName() {
  std::ifstream info("/proc/cpuinfo");
  std::string model;
  int count = 0;
  for (std::string line; std::getline(info, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    ++count;
    const std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(line, ": ");
    model = std::string(field.second);
  }
  return model.empty() ? "" : absl::StrCat(model, ", ", Counted(count, "processor"));
}

void AddProcessGauges(Metrics* metrics) {
  metrics->SetGauge("process_resident_bytes", ResidentBytes);
  metrics->SetGauge("process_allocated_bytes",
                    [] { return static_cast<double>(AllocatedBytes()); });
  metrics->SetGauge("process_open_fds", OpenFds);
  metrics->SetGauge("process_uptime_seconds", [start_ns = MonotonicNanos()] {
    return static_cast<double>(MonotonicNanos() - start_ns) * 1e-9;
  });
}

void AddHeapGauge(std::vector<int> fds, Metrics* metrics) {
  metrics->SetGauge("heap_resident_bytes", [fds = std::move(fds)] {
    double bytes = 0;
    for (int fd : fds) bytes += FileBytes(fd);
    return bytes;
  });
}

}  // namespace agmm
