// Which GEMM kernel multiplies what on this processor. Chosen once per process: on some processors
// bf16 is faster as f32 than by bf16 instructions, and only a measurement tells (NOTES.md).
//
// ONEDNN_MAX_CPU_ISA limits the choice, for tests of lesser processors: AVX512_CORE_BF16 takes the
// tiles away, AVX512_CORE oneDNN's bf16 as well.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/cpu/cpu_gemm.h"

namespace agmm {

// Whether this processor has the kernel.
bool Has(GemmKernel kernel);

// The kernel for products of operands of `dtype`: exact for whole numbers, and the fastest. It
// depends on neither the rows of a product nor the cuts of an algorithm, so that a row of C has the
// same bits in any batch. The first call takes some milliseconds to measure.
GemmKernel KernelFor(DType dtype);

// "oneDNN 2.6.3 (brg:avx512_core), bf16 widened to f32".
std::string GemmDescription();
// "bf16, GFLOP/s a core: oneDNN 84, widened to f32 150", as measured in this process; empty if the
// processor has one kernel only.
std::string GemmRates();

}  // namespace agmm
