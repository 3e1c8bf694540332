// cuda_probe: products by cuBLASLt.
#include <cstdlib>
#include <cstring>

#include "tests/gpu/probe.h"
#include "tests/model/floats.h"

namespace {

using model::Floats;

struct Case {
  cudaDataType in, out;
  int64_t m, n, k;
  int64_t pitch;  // bytes that the rows of each matrix begin at multiples of; 0: packed
};

std::string Text(const Case& c) {
  const auto type = [](cudaDataType t) {
    return std::string(t == CUDA_R_32F ? "f32" : t == CUDA_R_16F ? "f16" : "bf16");
  };
  return type(c.in) + " to " + type(c.out) + ", " + std::to_string(c.m) + " x " +
         std::to_string(c.n) + " x " + std::to_string(c.k) + ", pitch " + std::to_string(c.pitch);
}

Floats View(void* at, cudaDataType type, int64_t ld) {
  return {type == CUDA_R_32F   ? Floats::kF32
          : type == CUDA_R_16F ? Floats::kF16
                               : Floats::kBf16,
          static_cast<char*>(at), ld, 1};
}

int64_t Bytes(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

float Value(int64_t row, int64_t column, int seed) {
  return static_cast<float>((row * 5 + column * 3 + seed) % 5 - 2);
}

std::string OpenBlas(BlasTable& blas) {
  const char* path = std::getenv("AGMM_CUBLASLT");
  if (path) return blas.Open(path);
  std::string error = blas.Open("libcublasLt.so.13");
  return error.empty() ? "" : blas.Open("libcublasLt.so.12");
}

// A row-major matrix in device memory, and its layout.
struct Matrix {
  cublasLtMatrixLayout_t layout = nullptr;
  CUdeviceptr at = 0;
  char* host = nullptr;
  int64_t ld = 0;
  size_t bytes = 0;
};

class Products {
 public:
  explicit Products(Probe& probe) : probe_(probe) {
    if (const std::string error = OpenBlas(blas_); !error.empty()) {
      probe.Fail(error + "; AGMM_CUBLASLT names cuBLASLt");
      return;
    }
    Check("cublasLtCreate", blas_.cublasLtCreate(&handle_));
    Check("cublasLtMatmulDescCreate",
          blas_.cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Check("cublasLtMatmulPreferenceCreate", blas_.cublasLtMatmulPreferenceCreate(&preference_));
    workspace_ = probe.Device(kWorkspace);
    Check(
        "cublasLtMatmulPreferenceSetAttribute",
        blas_.cublasLtMatmulPreferenceSetAttribute(
            preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace));
    stream_ = probe.Stream();
  }

  ~Products() {
    if (!handle_) return;
    blas_.cublasLtMatmulPreferenceDestroy(preference_);
    blas_.cublasLtMatmulDescDestroy(product_);
    blas_.cublasLtDestroy(handle_);
  }

  // Two products of small integers, the second added to the first, exact to the bit.
  void Run(const Case& c) {
    if (!probe_.failure.empty()) return;
    Matrix a = Make(c.m, c.k, c.in, c.pitch, 1), b = Make(c.k, c.n, c.in, c.pitch, 2);
    Matrix d = Make(c.m, c.n, c.out, c.pitch, 0);
    // As aligned as rows at these pitches are.
    const uint32_t alignment = c.pitch ? 128 : Bytes(c.in);
    for (auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      Check("cublasLtMatmulPreferenceSetAttribute",
            blas_.cublasLtMatmulPreferenceSetAttribute(preference_, which, &alignment,
                                                       sizeof alignment));
    }
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    Check("cublasLtMatmulAlgoGetHeuristic for " + Text(c),
          blas_.cublasLtMatmulAlgoGetHeuristic(handle_, product_, a.layout, b.layout, d.layout,
                                               d.layout, preference_, 1, &found, &count));
    const auto pointer = [](CUdeviceptr at) { return reinterpret_cast<void*>(at); };
    const float one = 1;
    for (const float beta : {0.0f, 1.0f}) {
      if (!probe_.failure.empty()) break;
      Check("cublasLtMatmul for " + Text(c),
            blas_.cublasLtMatmul(handle_, product_, &one, pointer(a.at), a.layout, pointer(b.at),
                                 b.layout, &beta, pointer(d.at), d.layout, pointer(d.at), d.layout,
                                 &found.algo, pointer(workspace_), kWorkspace, stream_));
    }
    probe_.Check("cuMemcpyDtoHAsync", probe_.cu.cuMemcpyDtoHAsync(d.host, d.at, d.bytes, stream_));
    probe_.Check("cuStreamSynchronize", probe_.cu.cuStreamSynchronize(stream_));
    const Floats values = View(d.host, c.out, d.ld);
    int64_t wrong = 0;
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < c.k; ++l) sum += Value(i, l, 1) * Value(l, j, 2);
        wrong += values.Get(i, j) != 2 * sum;
      }
    }
    probe_.Expect(wrong == 0, Text(c) + ": " + std::to_string(wrong) + " elements differ");
    for (const Matrix& matrix : {a, b, d}) blas_.cublasLtMatrixLayoutDestroy(matrix.layout);
  }

 private:
  void Check(const std::string& call, cublasStatus_t status) {
    probe_.Expect(status == CUBLAS_STATUS_SUCCESS,
                  call + ": cublasStatus_t " + std::to_string(status));
  }

  Matrix Make(int64_t rows, int64_t cols, cudaDataType type, int64_t pitch, int seed) {
    Matrix matrix;
    const int64_t row = cols * Bytes(type);
    matrix.ld = (pitch ? (row + pitch - 1) / pitch * pitch : row) / Bytes(type);
    matrix.bytes = rows * matrix.ld * Bytes(type);
    matrix.host = probe_.Host(matrix.bytes);
    matrix.at = probe_.Device(matrix.bytes);
    std::memset(matrix.host, 0xff, matrix.bytes);  // NaN
    const Floats values = View(matrix.host, type, matrix.ld);
    for (int64_t i = 0; seed && i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) values.Set(i, j, Value(i, j, seed));
    }
    probe_.Check("cuMemcpyHtoDAsync",
                 probe_.cu.cuMemcpyHtoDAsync(matrix.at, matrix.host, matrix.bytes, stream_));
    const cublasLtOrder_t order = CUBLASLT_ORDER_ROW;
    Check("cublasLtMatrixLayoutCreate",
          blas_.cublasLtMatrixLayoutCreate(&matrix.layout, type, rows, cols, matrix.ld));
    Check("cublasLtMatrixLayoutSetAttribute",
          blas_.cublasLtMatrixLayoutSetAttribute(matrix.layout, CUBLASLT_MATRIX_LAYOUT_ORDER,
                                                 &order, sizeof order));
    return matrix;
  }

  static constexpr uint64_t kWorkspace = 32 << 20;
  Probe& probe_;
  BlasTable blas_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  CUdeviceptr workspace_ = 0;
  CUstream stream_ = nullptr;
};

void Exact(Probe& probe, cudaDataType in) {
  Products products(probe);
  for (cudaDataType out : {CUDA_R_32F, in}) {
    for (int64_t pitch : {128, 0}) {
      products.Run({in, out, 64, 64, 64, pitch});
      products.Run({in, out, 1, 1, 1, pitch});
      products.Run({in, out, 33, 130, 71, pitch});
      products.Run({in, out, 5, 3, 97, pitch});
    }
    if (in == out) break;
  }
}

void ExactF32(Probe& probe) { Exact(probe, CUDA_R_32F); }
void ExactF16(Probe& probe) { Exact(probe, CUDA_R_16F); }
void ExactBf16(Probe& probe) { Exact(probe, CUDA_R_16BF); }

}  // namespace

std::vector<ProbeCheck> ProductChecks() {
  constexpr auto kMust = ProbeCheck::kMust;
  return {
      {kMust, "product.f32", "integers are exact, ragged shapes, pitches, accumulated", ExactF32},
      {kMust, "product.f16", "the same, to f32 and f16", ExactF16},
      {kMust, "product.bf16", "the same, to f32 and bf16", ExactBf16},
  };
}
