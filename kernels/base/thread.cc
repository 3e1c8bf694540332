#include "kernels/base/thread.h"

#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"

namespace agmm {
namespace {

// Measured in daemon/sequencer/NOTES.md. The least priority would be 19.
constexpr int kLowNice = 15;

absl::Status NoThread(absl::string_view purpose, const char* why) {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "no thread for %s could be started (%s); raise the limits of processes (ulimit -u, "
      "pids.max of the cgroup) and of address space (ulimit -v)",
      purpose, why));
}

}  // namespace

absl::StatusOr<std::thread> StartThread(absl::string_view purpose, std::function<void()> run) {
  if (AGMM_FAILPOINT(absl::StrCat("thread.none ", purpose))) return NoThread(purpose, "failpoint");
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return NoThread(purpose, error.what());
  } catch (const std::bad_alloc&) {
    return NoThread(purpose, "out of memory");
  }
}

// On Linux, a nice value belongs to a thread. An error of getpriority is -1, which is below
// kLowNice.
void LowerPriority() {
  constexpr id_t kCallingThread = 0;
  setpriority(PRIO_PROCESS, kCallingThread,
              std::max(getpriority(PRIO_PROCESS, kCallingThread), kLowNice));
}

}  // namespace agmm
