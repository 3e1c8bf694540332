#include "daemon/address_space.h"

#include <malloc.h>
#include <sys/resource.h>

#include "absl/strings/str_format.h"
#include "kernels/base/cores.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

constexpr int64_t kMiB = 1 << 20;
// The program and its libraries, gRPC's and UCX's memory, and messages in flight.
constexpr int64_t kBaseBytes = 256 * kMiB;
// Each takes 64 MiB, and briefly twice as much.
constexpr int kArenas = 2;
// Threads of the daemon, gRPC and UCX, without the devices' workers and gRPC's two per core.
constexpr int kThreads = 17;
// The default of glibc if `ulimit -s` is unlimited.
constexpr int64_t kStackBytes = 2 * kMiB;

}  // namespace

int64_t AddressSpaceOf(const Config& config, int cores, int64_t stack_bytes) {
  int64_t bytes = kBaseBytes + (kArenas + 1) * 64 * kMiB;
  int64_t threads = kThreads + 2 * int64_t{cores};
  for (const DeviceConfig& device : config.devices) {
    bytes += device.heap_bytes;
    threads += device.threads;
  }
  return bytes + threads * stack_bytes;
}

absl::Status FitAddressSpace(const Config& config) {
  rlimit space{}, stack{};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  mallopt(M_ARENA_MAX, kArenas);
  const bool bounded = getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY;
  const int64_t needed = AddressSpaceOf(
      config, UsableCores(), bounded ? static_cast<int64_t>(stack.rlim_cur) : kStackBytes);
  const auto limit = static_cast<int64_t>(space.rlim_cur);
  if (limit >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the process may have %s of address space, and this configuration takes up to %s; raise the "
      "limit (ulimit -v), or give the devices smaller heaps or fewer threads",
      FormatBytes(limit), FormatBytes(needed)));
}

}  // namespace agmm
