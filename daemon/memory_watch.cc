#include "daemon/memory_watch.h"

#include "absl/time/time.h"
#include "kernels/base/memory.h"

namespace agmm {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(2);
constexpr int kTrimPeriods = 3;
constexpr size_t kStrainBytes = size_t{256} << 20;
// Uploads leave less, which is kept for later uploads on purpose (main.cc).
constexpr size_t kKeptFreeBytes = size_t{256} << 20;

}  // namespace

void MemoryWatch::Start() {
  loop_->PostAfter(kPeriod, [this] {
    strained_(AllocatedBytes() > usual_bytes_() + kStrainBytes);
    if (++looks_ % kTrimPeriods == 0) ReturnFreedMemory(kKeptFreeBytes);
    Start();
  });
}

}  // namespace agmm
