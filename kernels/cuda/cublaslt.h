// cuBLASLt, opened at run time, because it has 540 MB and comes with the toolkit or with PyTorch.
#pragma once

#include <cublasLt.h>

#include <string>

#include "absl/status/statusor.h"

#define AGMM_CUBLASLT_FUNCTIONS(X)        \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtGetVersion)                   \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmul)

namespace agmm {

// The table of functions. Lives as long as the process.
struct CublasLt {
#define AGMM_MEMBER(name) decltype(&::name) name = nullptr;
  AGMM_CUBLASLT_FUNCTIONS(AGMM_MEMBER)
#undef AGMM_MEMBER
  std::string version;  // "13.1.0"
};

// Opens the library at the first call; later calls return the same result. Uses the file that the
// variable AGMM_CUBLASLT names, or the first of the usual names that the loader finds. Errors:
// FAILED_PRECONDITION with the names that were tried.
absl::StatusOr<const CublasLt*> OpenCublasLt();

}  // namespace agmm
