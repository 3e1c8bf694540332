#include "kernels/cuda/gemm.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace agmm {
namespace {

cudaDataType TypeFor(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

std::string ToText(const ProductShape& shape) {
  return absl::StrFormat(
      "a product of %dx%dx%d, %s to %s, rows %d, %d and %d B apart, aligned to %d, %d and %d B",
      shape.m, shape.n, shape.k, Name(shape.in), Name(shape.out), shape.a_pitch, shape.b_pitch,
      shape.c_pitch, shape.a_alignment, shape.b_alignment, shape.c_alignment);
}

}  // namespace

#define AGMM_CUBLAS_RETURN(function, ...) \
  AGMM_RETURN_IF_ERROR(CublasStatus(library_.function(__VA_ARGS__), #function, where_))

absl::StatusOr<std::unique_ptr<CudaGemm>> CudaGemm::Create(const std::string& where) {
  AGMM_ASSIGN_OR_RETURN(const CublasLt* const library, OpenCublasLt());
  std::unique_ptr<CudaGemm> gemm(new CudaGemm(*library, where));
  AGMM_RETURN_IF_ERROR(
      CublasStatus(library->cublasLtCreate(&gemm->handle_), "cublasLtCreate", where));
  return gemm;
}

CudaGemm::~CudaGemm() {
  if (handle_ != nullptr) library_.cublasLtDestroy(handle_);
}

absl::StatusOr<std::shared_ptr<const CudaProduct>> CudaGemm::Get(const ProductShape& shape) {
  std::lock_guard lock(mutex_);
  if (auto product = products_[shape].lock(); product != nullptr) return product;
  std::shared_ptr<CudaProduct> product(new CudaProduct(library_, handle_, where_, shape));
  AGMM_RETURN_IF_ERROR(Annotate(product->Choose(), ToText(shape)));
  std::erase_if(products_, [](const auto& entry) { return entry.second.expired(); });
  products_[shape] = product;
  return product;
}

CudaProduct::~CudaProduct() {
  if (desc_ != nullptr) library_.cublasLtMatmulDescDestroy(desc_);
  for (cublasLtMatrixLayout_t layout : {a_, b_, c_}) {
    if (layout != nullptr) library_.cublasLtMatrixLayoutDestroy(layout);
  }
}

// cuBLASLt's matrices are column-major, so it treats a row-major matrix as its transpose and
// computes c' = b' * a'.
absl::Status CudaProduct::Choose() {
  AGMM_CUBLAS_RETURN(cublasLtMatmulDescCreate, &desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cudaDataType in = TypeFor(shape_.in), out = TypeFor(shape_.out);
  const int64_t in_bytes = SizeOf(shape_.in), out_bytes = SizeOf(shape_.out);
  AGMM_CUBLAS_RETURN(cublasLtMatrixLayoutCreate, &b_, in, shape_.n, shape_.k,
                     shape_.b_pitch / in_bytes);
  AGMM_CUBLAS_RETURN(cublasLtMatrixLayoutCreate, &a_, in, shape_.k, shape_.m,
                     shape_.a_pitch / in_bytes);
  AGMM_CUBLAS_RETURN(cublasLtMatrixLayoutCreate, &c_, out, shape_.n, shape_.m,
                     shape_.c_pitch / out_bytes);
  cublasLtMatmulPreference_t preference = nullptr;
  AGMM_CUBLAS_RETURN(cublasLtMatmulPreferenceCreate, &preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return library_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                         sizeof(value));
  };
  const uint64_t workspace = kGemmWorkspaceBytes;
  // Parts of a sum are added in f32, never in the narrower type of the result, as "in place" would
  // do (cublasLt.h).
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                           (shape_.out == DType::kF32 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0);
  const auto a_alignment = static_cast<uint32_t>(shape_.a_alignment),
             b_alignment = static_cast<uint32_t>(shape_.b_alignment),
             c_alignment = static_cast<uint32_t>(shape_.c_alignment);
  int found = 0;
  cublasStatus_t result = set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  const auto then = [&](cublasLtMatmulPreferenceAttributes_t attribute, uint32_t value) {
    if (result == CUBLAS_STATUS_SUCCESS) result = set(attribute, value);
  };
  then(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  then(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b_alignment);
  then(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a_alignment);
  then(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c_alignment);
  then(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c_alignment);
  if (result == CUBLAS_STATUS_SUCCESS) {
    result = library_.cublasLtMatmulAlgoGetHeuristic(handle_, desc_, b_, a_, c_, c_, preference, 1,
                                                     &choice_, &found);
  }
  if (result == CUBLAS_STATUS_SUCCESS && found > 0) result = choice_.state;
  if (result == CUBLAS_STATUS_SUCCESS && found == 0) result = CUBLAS_STATUS_NOT_SUPPORTED;
  library_.cublasLtMatmulPreferenceDestroy(preference);
  return CublasStatus(result, "cublasLtMatmulAlgoGetHeuristic", where_);
}

cublasStatus_t CudaProduct::Run(CUdeviceptr a, CUdeviceptr b, CUdeviceptr c, CUdeviceptr workspace,
                                CUstream stream) const {
  const float alpha = 1, beta = shape_.add ? 1 : 0;
  const auto at = [](CUdeviceptr address) { return reinterpret_cast<void*>(address); };
  return library_.cublasLtMatmul(handle_, desc_, &alpha, at(b), b_, at(a), a_, &beta, at(c), c_,
                                 at(c), c_, &choice_.algo, at(workspace), kGemmWorkspaceBytes,
                                 stream);
}

#undef AGMM_CUBLAS_RETURN

}  // namespace agmm
