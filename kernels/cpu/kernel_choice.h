// Which GEMM kernel multiplies what on this processor. The processor's features alone decide, and
// no measurement, so that equal processors give equal bits at every start (NOTES.md).
//
// ONEDNN_MAX_CPU_ISA limits the choice, for tests of lesser processors: AVX512_CORE_BF16 takes the
// tiles away, AVX512_CORE oneDNN's bf16 as well.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/cpu/cpu_gemm.h"

namespace agmm {

// Returns true if this processor has the kernel.
bool Has(GemmKernel kernel);

// The kernel for products of operands of `dtype`: exact for whole numbers, and the fastest. It
// depends on neither the rows of a product nor the cuts of an algorithm, so that a row of C has the
// same bits in any batch.
GemmKernel KernelFor(DType dtype);

// "oneDNN 2.6.3 (brg:avx512_core), bf16 widened to f32".
std::string GemmDescription();

}  // namespace agmm
