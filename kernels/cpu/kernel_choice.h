// Chooses the GEMM kernel for each product on this processor. Only the processor's features decide,
// not measurements, so that equal processors give equal bits at every start (NOTES.md).
//
// ONEDNN_MAX_CPU_ISA limits the choice, for tests of smaller processors: AVX512_CORE_BF16 excludes
// the tiles, AVX512_CORE also excludes oneDNN's bf16.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/cpu/cpu_gemm.h"

namespace agmm {

// Returns true if this processor has the kernel.
bool Has(GemmKernel kernel);

// Returns the fastest kernel for products of operands of `dtype` that is exact for whole numbers.
// It depends neither on the rows of a product nor on the cuts of an algorithm, so that a row of C
// has the same bits in any batch.
GemmKernel KernelFor(DType dtype);

// "oneDNN 2.6.3 (brg:avx512_core), bf16 widened to f32".
std::string GemmDescription();

}  // namespace agmm
