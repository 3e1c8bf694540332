#include "kernels/cpu/kernel_choice.h"

#include <time.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/base/thread.h"
#include "kernels/cpu/tiles.h"

namespace agmm {
namespace {

// A piece of the usual height, times a B that is small enough to measure in a millisecond.
constexpr int64_t kRows = 128, kN = 256, kK = 1024;
// The best of these counts, after one to warm up, of as many as run in kMostNanos but at least
// kMinRuns: emulated bf16 is slow.
constexpr int kRuns = 6, kMinRuns = 2;
constexpr int64_t kMostNanos = 10'000'000;
// Widening must win by this factor, because its packed B takes twice the memory and because nodes
// with the same processor should choose alike.
constexpr double kWidenGain = 1.2;

// Processor time of this thread, because a machine that does other work must not decide.
int64_t ThreadNanos() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// GFLOP/s of a core that multiplies a piece in bf16 by `kernel` the way the device does it; 0 if it
// cannot.
double Rate(GemmKernel kernel) {
  GemmLibrary library(1);
  GemmWorker worker(0);
  // Ones, because zeros may take less power.
  std::vector<uint16_t> a(kRows * kK, F32ToBF16(1)), b(kK * kN, F32ToBF16(1)), c(kRows * kN);
  const Matrix narrow_a{reinterpret_cast<std::byte*>(a.data()), kK * 2, DType::kBF16};
  const Matrix narrow_b{reinterpret_cast<std::byte*>(b.data()), kN * 2, DType::kBF16};
  const Matrix narrow_c{reinterpret_cast<std::byte*>(c.data()), kN * 2, DType::kBF16};
  const bool widens = InputOf(kernel) == DType::kF32;
  const Matrix wide_a{worker.a.Get(kRows * kK * 4), kK * 4, DType::kF32};
  const Matrix wide_c{worker.c.Get(kRows * kN * 4), kN * 4, DType::kF32};
  const auto matmul = library.Get({kRows, kN, kK, kernel, InputOf(kernel), false});
  if (!matmul.ok()) return 0;
  const auto packed = (*matmul)->Pack(narrow_b, worker);
  if (!packed.ok()) return 0;
  double best = 0;
  const int64_t begin_ns = ThreadNanos();
  for (int run = 0; run <= kRuns && (run <= kMinRuns || ThreadNanos() - begin_ns < kMostNanos);
       ++run) {
    const int64_t start_ns = ThreadNanos();
    if (widens) CopyRows(narrow_a, wide_a, kRows, kK);
    const absl::Status status =
        (*matmul)->Run(widens ? wide_a : narrow_a, *packed, widens ? wide_c : narrow_c, worker);
    if (!status.ok()) return 0;
    if (widens) CopyRows(wide_c, narrow_c, kRows, kN);
    const int64_t took_ns = std::max<int64_t>(ThreadNanos() - start_ns, 1);
    if (run > 0) best = std::max(best, 2.0 * kRows * kN * kK / took_ns);
  }
  return best;
}

// The kernel for bf16 and the rates that decided it.
struct Choice {
  GemmKernel kernel = GemmKernel::kF32;
  double native = 0, widened = 0;  // GFLOP/s of a core; 0: not measured
};

Choice Measure() {
  const GemmKernel native = Has(GemmKernel::kTiles) ? GemmKernel::kTiles : GemmKernel::kBF16;
  if (!Has(native)) return {};
  Choice choice;
  try {
    choice.native = Rate(native);
    choice.widened = Rate(GemmKernel::kF32);
  } catch (const std::exception&) {
    // Not measured, for lack of memory or because oneDNN refused. The bf16 kernel takes less
    // memory.
  }
  if (choice.widened <= kWidenGain * choice.native) choice.kernel = native;
  return choice;
}

// On a thread of its own, because a worker changes its thread's OpenMP settings.
const Choice& ChoiceOfBF16() {
  static const Choice choice = [] {
    Choice made;
    absl::StatusOr<std::thread> measures =
        StartThread("measuring the kernels", [&] { made = Measure(); });
    // Without a thread it is not measured, as without memory.
    if (measures.ok()) measures->join();
    return made;
  }();
  return choice;
}

}  // namespace

bool Has(GemmKernel kernel) {
  // Where oneDNN has AMX kernels the processor has AMX, and ONEDNN_MAX_CPU_ISA allows it.
  static const std::string bf16 = OneDnnCode(GemmKernel::kBF16);
  static const bool tiles = absl::StrContains(bf16, "amx") && AskForTiles();
  switch (kernel) {
    case GemmKernel::kF32: return true;
    case GemmKernel::kBF16: return !bf16.empty();
    case GemmKernel::kTiles: return tiles;
  }
  return false;
}

GemmKernel KernelFor(DType dtype) {
  return dtype == DType::kBF16 ? ChoiceOfBF16().kernel : GemmKernel::kF32;
}

std::string GemmDescription() {
  const dnnl_version_t* version = dnnl_version();
  std::string text = absl::StrFormat("oneDNN %d.%d.%d (%s), bf16 ", version->major, version->minor,
                                     version->patch, OneDnnCode(GemmKernel::kF32));
  const GemmKernel kernel = KernelFor(DType::kBF16);
  absl::StrAppend(&text, kernel == GemmKernel::kTiles  ? "by AMX tiles"
                         : kernel == GemmKernel::kBF16 ? "by oneDNN"
                                                       : "widened to f32");
  if (!Has(GemmKernel::kBF16)) absl::StrAppend(&text, " (oneDNN has no bf16 on this processor)");
  return text;
}

std::string GemmRates() {
  if (!Has(GemmKernel::kBF16)) return "";
  const Choice& choice = ChoiceOfBF16();
  return absl::StrFormat("bf16, GFLOP/s a core: %s %.0f, widened to f32 %.0f",
                         Has(GemmKernel::kTiles) ? "tiles" : "oneDNN", choice.native,
                         choice.widened);
}

}  // namespace agmm
