// cuda_probe: products by cuBLASLt.
#include <cstdlib>
#include <cstring>

#include "tests/gpu/measure.h"
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

std::string Milliseconds(Clock::time_point since) {
  return Number(Microseconds(since) / 1000, "ms");
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
  // Adds the times to open the library and to create its handle to `times`.
  explicit Products(Probe& probe, std::string* times = nullptr) : probe_(probe) {
    auto begin = Clock::now();
    const auto took = [&](const char* what) {
      if (times) Append(*times, std::string(what) + " " + Milliseconds(begin));
      begin = Clock::now();
    };
    if (const std::string error = OpenBlas(blas_); !error.empty()) {
      probe.Fail(error + "; AGMM_CUBLASLT names cuBLASLt");
      return;
    }
    took("open");
    Check("cublasLtCreate", blas_.cublasLtCreate(&handle_));
    took("create");
    Check("cublasLtMatmulDescCreate",
          blas_.cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
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
    blas_.cublasLtMatmulDescDestroy(description_);
    blas_.cublasLtDestroy(handle_);
  }

  // Two products of small integers, the second added to the first, exact to the bit.
  void Run(const Case& c) {
    if (!probe_.failure.empty()) return;
    const Product product = Make(c);
    const cublasLtMatmulHeuristicResult_t found = Find(c, product);
    for (const float beta : {0.0f, 1.0f}) Multiply(c, product, found, beta);
    const Matrix& d = product.d;
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
    Destroy(product);
  }

  // The times of the first product of a kind and of the second, as text.
  std::string Times(const Case& c) {
    if (!probe_.failure.empty()) return "";
    const Product product = Make(c);
    probe_.Check("cuStreamSynchronize", probe_.cu.cuStreamSynchronize(stream_));
    auto begin = Clock::now();
    const cublasLtMatmulHeuristicResult_t found = Find(c, product);
    std::string times = Text(c) + ": heuristic " + Milliseconds(begin);
    for (const char* which : {"first", "second"}) {
      begin = Clock::now();
      Multiply(c, product, found, 0);
      const std::string submitted = Milliseconds(begin);
      probe_.Check("cuStreamSynchronize", probe_.cu.cuStreamSynchronize(stream_));
      times += std::string(", ") + which + " " + submitted + " to submit and " +
               Milliseconds(begin) + " to end";
    }
    Destroy(product);
    return times;
  }

 private:
  struct Product {
    Matrix a, b, d;
  };

  Product Make(const Case& c) {
    return {Make(c.m, c.k, c.in, c.pitch, 1), Make(c.k, c.n, c.in, c.pitch, 2),
            Make(c.m, c.n, c.out, c.pitch, 0)};
  }
  void Destroy(const Product& product) {
    for (const Matrix* matrix : {&product.a, &product.b, &product.d}) {
      blas_.cublasLtMatrixLayoutDestroy(matrix->layout);
    }
  }

  cublasLtMatmulHeuristicResult_t Find(const Case& c, const Product& product) {
    // The alignment of rows at these pitches.
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
          blas_.cublasLtMatmulAlgoGetHeuristic(handle_, description_, product.a.layout,
                                               product.b.layout, product.d.layout, product.d.layout,
                                               preference_, 1, &found, &count));
    return found;
  }

  void Multiply(const Case& c, const Product& product, const cublasLtMatmulHeuristicResult_t& found,
                float beta) {
    if (!probe_.failure.empty()) return;
    const auto pointer = [](CUdeviceptr at) { return reinterpret_cast<void*>(at); };
    const float one = 1;
    const auto& [a, b, d] = product;
    Check("cublasLtMatmul for " + Text(c),
          blas_.cublasLtMatmul(handle_, description_, &one, pointer(a.at), a.layout, pointer(b.at),
                               b.layout, &beta, pointer(d.at), d.layout, pointer(d.at), d.layout,
                               &found.algo, pointer(workspace_), kWorkspace, stream_));
  }

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
  cublasLtMatmulDesc_t description_ = nullptr;
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

// The library loads its kernels on first use.
void FirstUse(Probe& probe) {
  Products products(probe, &probe.text);
  for (cudaDataType type : {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF}) {
    probe.text += "; " + products.Times({type, type, 512, 512, 512, 128});
  }
}

}  // namespace

std::vector<ProbeCheck> ProductChecks() {
  constexpr auto kMust = ProbeCheck::kMust;
  constexpr auto kFact = ProbeCheck::kFact;
  return {
      {kMust, "product.f32", "integers are exact, ragged shapes, pitches, accumulated", ExactF32},
      {kMust, "product.f16", "the same, to f32 and f16", ExactF16},
      {kMust, "product.bf16", "the same, to f32 and bf16", ExactBf16},
      {kFact, "fact.first_products", "cuBLASLt in a new process", FirstUse},
  };
}
