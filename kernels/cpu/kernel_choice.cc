#include "kernels/cpu/kernel_choice.h"

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/cpu/tiles.h"

namespace agmm {
namespace {

// Returns true if oneDNN multiplies faster in bf16 than in f32. AMD processors with bf16
// instructions do twice as many products a cycle in bf16. Intel's do as many in both (NOTES.md).
bool BF16IsFast() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") &&
         absl::StrContains(OneDnnCode(GemmKernel::kBF16), "avx512_core_bf16");
#else
  return false;
#endif
}

GemmKernel KernelForBF16() {
  if (Has(GemmKernel::kTiles)) return GemmKernel::kTiles;
  return BF16IsFast() ? GemmKernel::kBF16 : GemmKernel::kF32;
}

}  // namespace

bool Has(GemmKernel kernel) {
  // If oneDNN has AMX kernels, then the processor has AMX, and ONEDNN_MAX_CPU_ISA allows it.
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
  static const GemmKernel bf16 = KernelForBF16();
  return dtype == DType::kBF16 ? bf16 : GemmKernel::kF32;
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

}  // namespace agmm
