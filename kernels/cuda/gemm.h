// Products of row-major matrices by cuBLASLt: f32, bf16 and f16, summed in f32, of any shape and
// pitch.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/cublaslt.h"

namespace agmm {

// Workspace that cuBLASLt may use on each stream that multiplies.
inline constexpr int64_t kGemmWorkspaceBytes = 32 << 20;

// c[m, n] (+)= a[m, k] * b[k, n]. Pitches and alignments are in bytes.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_pitch = 0, b_pitch = 0, c_pitch = 0;
  // Powers of two that divide the addresses.
  int a_alignment = 1, b_alignment = 1, c_alignment = 1;
  DType in = DType::kF32;   // of a and b
  DType out = DType::kF32;  // of c: f32, or `in`
  bool add = false;         // c +=
  auto operator<=>(const ProductShape&) const = default;
};

// A product for which cuBLASLt has chosen an algorithm. Immutable.
class CudaProduct {
 public:
  ~CudaProduct();
  CudaProduct(const CudaProduct&) = delete;
  CudaProduct& operator=(const CudaProduct&) = delete;
  // Queues the product on a stream of the current context, with the stream's own workspace of
  // kGemmWorkspaceBytes. Returns the result of cublasLtMatmul.
  cublasStatus_t Run(CUdeviceptr a, CUdeviceptr b, CUdeviceptr c, CUdeviceptr workspace,
                     CUstream stream) const;

 private:
  friend class CudaGemm;
  CudaProduct(const CublasLt& library, cublasLtHandle_t handle, const std::string& where,
              const ProductShape& shape)
      : library_(library), handle_(handle), where_(where), shape_(shape) {}
  absl::Status Choose();

  const CublasLt& library_;
  const cublasLtHandle_t handle_;
  const std::string where_;
  const ProductShape shape_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_ = {};
};

// cuBLASLt on one GPU. Thread-safe.
class CudaGemm {
 public:
  // Creates the library for the current context, which `where` names: "GPU 2". Errors: those of
  // OpenCublasLt and of cuBLASLt.
  static absl::StatusOr<std::unique_ptr<CudaGemm>> Create(const std::string& where);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  // Returns the product, whose algorithm is chosen once for each shape. The context must be
  // current. Errors: UNIMPLEMENTED for a product that cuBLASLt does not support.
  absl::StatusOr<std::shared_ptr<const CudaProduct>> Get(const ProductShape& shape);
  const std::string& version() const { return library_.version; }
  // Keeps the library's state when this is destroyed, because work of the GPU may never end.
  void Keep() { handle_ = nullptr; }

 private:
  CudaGemm(const CublasLt& library, const std::string& where) : library_(library), where_(where) {}

  const CublasLt& library_;
  const std::string where_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<ProductShape, std::weak_ptr<const CudaProduct>> products_;
};

}  // namespace agmm
