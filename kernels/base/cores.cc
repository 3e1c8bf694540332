#include "kernels/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace agmm {

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::max(1u, std::thread::hardware_concurrency());  // more than fit the set
}

}  // namespace agmm
