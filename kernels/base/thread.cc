#include "kernels/base/thread.h"

#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"

namespace agmm {
namespace {

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

}  // namespace agmm
