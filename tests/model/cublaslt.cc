// The entry points of cuBLASLt: descriptors, and products in f32 on the host.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/model/call.h"
#include "tests/model/floats.h"

using namespace model;

namespace {

struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  cublasLtOrder_t order = CUBLASLT_ORDER_COL;
  uint64_t rows = 0, cols = 0;
  int64_t ld = 0;
  int32_t batches = 1;
  int64_t batch_stride = 0;

  bool by_row() const { return order == CUBLASLT_ORDER_ROW; }
  int64_t lines() const { return by_row() ? rows : cols; }
  int64_t line() const { return by_row() ? cols : rows; }
  int64_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
  Access Touch(const void* at, int batch, bool writes) const {
    const auto address = reinterpret_cast<uint64_t>(at) + batch * batch_stride * element_bytes();
    return {{address, lines(), line() * element_bytes(), ld * element_bytes()}, writes};
  }
};

struct Product {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};

struct Preference {
  uint64_t workspace = 0;
  std::array<uint32_t, 4> alignments = {256, 256, 256, 256};  // of A, B, C and D
  uint32_t schemes = 0;  // allowed schemes for adding parts of a sum
};

// Contents of a cublasLtMatmulAlgo_t.
struct Algorithm {
  uint64_t mark = 0, workspace = 0;
  std::array<uint32_t, 4> alignments = {};
  std::array<uint16_t, 4> types = {};
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
constexpr uint64_t kMark = 0x6d6f64656c;
constexpr uint64_t kWorkspace = 64 << 10;  // the workspace that a product uses if it may

cublasStatus_t Injected(const Call& call) {
  if (call.result == CUDA_ERROR_NOT_INITIALIZED) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (call.result == CUDA_ERROR_UNKNOWN) return CUBLAS_STATUS_INTERNAL_ERROR;
  return static_cast<cublasStatus_t>(call.result);
}

#define MODEL_BLAS_CALL(function) \
  const Call call(#function);     \
  if (call.result != CUDA_SUCCESS) return Injected(call)

// Descriptors are counted, so that leaks are found.
template <typename T, typename Handle>
cublasStatus_t New(Handle* handle, const T& value, const char* what) {
  T* made = new T(value);
  TheMachine().others[reinterpret_cast<uint64_t>(made)] = what;
  *handle = reinterpret_cast<Handle>(made);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T, typename Handle>
cublasStatus_t Delete(Handle handle) {
  if (!TheMachine().others.erase(reinterpret_cast<uint64_t>(handle))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  delete reinterpret_cast<T*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T, typename Handle>
T* Get(Handle handle) {
  return TheMachine().others.count(reinterpret_cast<uint64_t>(handle))
             ? reinterpret_cast<T*>(handle)
             : nullptr;
}

template <typename T>
cublasStatus_t Set(T& field, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// A product with all of its descriptors.
struct Problem {
  Product product;
  Layout a, b, c, d;

  bool across_a() const { return product.transposed_a != CUBLAS_OP_N; }
  bool across_b() const { return product.transposed_b != CUBLAS_OP_N; }
  int64_t m() const { return across_a() ? a.cols : a.rows; }
  int64_t k() const { return across_a() ? a.rows : a.cols; }
  int64_t n() const { return across_b() ? b.rows : b.cols; }
  std::array<const Layout*, 4> layouts() const { return {&a, &b, &c, &d}; }
};

cublasStatus_t Check(const Problem& p) {
  const bool shapes = p.k() == int64_t(p.across_b() ? p.b.cols : p.b.rows) &&
                      int64_t(p.c.rows) == p.m() && int64_t(p.c.cols) == p.n() &&
                      int64_t(p.d.rows) == p.m() && int64_t(p.d.cols) == p.n();
  if (!shapes || !p.m() || !p.n() || !p.k()) return CUBLAS_STATUS_INVALID_VALUE;
  for (const Layout* layout : p.layouts()) {
    if (layout->ld < layout->line() || layout->batches != p.d.batches || layout->batches < 1) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (layout->order != CUBLASLT_ORDER_COL && layout->order != CUBLASLT_ORDER_ROW) {
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  }
  const bool inputs = p.a.type == p.b.type &&
                      (p.a.type == CUDA_R_32F || p.a.type == CUDA_R_16F || p.a.type == CUDA_R_16BF);
  const bool output = p.d.type == CUDA_R_32F || p.d.type == p.a.type;
  const bool same = p.c.type == p.d.type && p.c.order == p.d.order;
  const bool sums = p.product.compute == CUBLAS_COMPUTE_32F && p.product.scale == CUDA_R_32F;
  return inputs && output && same && sums ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

Floats View(const Layout& layout, const void* at, int batch, bool across) {
  const Floats::Kind kind = layout.type == CUDA_R_32F   ? Floats::kF32
                            : layout.type == CUDA_R_16F ? Floats::kF16
                                                        : Floats::kBf16;
  const bool by_row = layout.by_row() != across;
  return {kind, TheMachine().memory.Engine(layout.Touch(at, batch, false).bytes.address),
          by_row ? layout.ld : 1, by_row ? 1 : layout.ld};
}

// Rows [begin, end) of one product: sums of k terms in order, in f32.
void Multiply(const Problem& p, const Floats& a, const std::vector<float>& b, const Floats& c,
              const Floats& d, float alpha, float beta, int64_t begin, int64_t end) {
  const int64_t n = p.n(), k = p.k();
  std::vector<float> sums(n);
  for (int64_t row = begin; row < end; ++row) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t i = 0; i < k; ++i) {
      const float factor = a.Get(row, i);
      const float* terms = &b[i * n];
      for (int64_t column = 0; column < n; ++column) sums[column] += factor * terms[column];
    }
    for (int64_t column = 0; column < n; ++column) {
      // Without beta, C is not read: it may hold anything.
      const float added = beta == 0 ? 0 : beta * c.Get(row, column);
      d.Set(row, column, alpha * sums[column] + added);
    }
  }
}

}  // namespace

size_t cublasLtGetVersion() { return 130100; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  MODEL_BLAS_CALL(cublasLtCreate);
  call.Context();
  return New(handle, 0, "a cuBLASLt handle");
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  MODEL_BLAS_CALL(cublasLtDestroy);
  return Delete<int>(handle);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  MODEL_BLAS_CALL(cublasLtMatrixLayoutCreate);
  return New(layout, Layout{.type = type, .rows = rows, .cols = cols, .ld = ld}, "a layout");
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  MODEL_BLAS_CALL(cublasLtMatrixLayoutDestroy);
  return Delete<Layout>(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  MODEL_BLAS_CALL(cublasLtMatrixLayoutSetAttribute);
  Layout* layout = Get<Layout>(handle);
  if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return Set(layout->type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return Set(layout->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return Set(layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return Set(layout->cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD: return Set(layout->ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return Set(layout->batches, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return Set(layout->batch_stride, value, bytes);
    default: call.Refuse(Format("attribute %d", attribute));
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  MODEL_BLAS_CALL(cublasLtMatmulDescCreate);
  return New(desc, Product{.compute = compute, .scale = scale}, "a description of a product");
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  MODEL_BLAS_CALL(cublasLtMatmulDescDestroy);
  return Delete<Product>(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  MODEL_BLAS_CALL(cublasLtMatmulDescSetAttribute);
  Product* product = Get<Product>(handle);
  if (!product) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return Set(product->compute, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return Set(product->scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return Set(product->pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return Set(product->transposed_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return Set(product->transposed_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return Set(product->epilogue, value, bytes);
    default: call.Refuse(Format("attribute %d", attribute));
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  MODEL_BLAS_CALL(cublasLtMatmulPreferenceCreate);
  return New(preference, Preference{}, "a preference");
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  MODEL_BLAS_CALL(cublasLtMatmulPreferenceDestroy);
  return Delete<Preference>(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  MODEL_BLAS_CALL(cublasLtMatmulPreferenceSetAttribute);
  Preference* preference = Get<Preference>(handle);
  if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
  auto& alignments = preference->alignments;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return Set(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: {
      const cublasStatus_t result = Set(preference->schemes, value, bytes);
      call.RefuseUnless((preference->schemes & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) == 0,
                        "sums added up in the type of the result");
      return result;
    }
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return Set(alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return Set(alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return Set(alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return Set(alignments[3], value, bytes);
    default: call.Refuse(Format("attribute %d", attribute));
  }
}

namespace {

// Gathers the problem of these handles; returns false if one of them does not exist.
bool Gather(const Call& call, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
            cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
            Problem& problem) {
  for (cublasLtMatrixLayout_t layout : {a, b, c, d}) {
    if (!Get<Layout>(layout)) return false;
  }
  if (!Get<Product>(desc)) return false;
  problem = {*Get<Product>(desc), *Get<Layout>(a), *Get<Layout>(b), *Get<Layout>(c),
             *Get<Layout>(d)};
  call.RefuseUnless(problem.product.pointer_mode == CUBLASLT_POINTER_MODE_HOST,
                    "a scalar in device memory");
  call.RefuseUnless(problem.product.epilogue == CUBLASLT_EPILOGUE_DEFAULT, "an epilogue");
  return true;
}

// Returns true if the pointers to A, B, C and D have the algorithm's alignments, and if it was
// `chosen` by the heuristic, the layouts its types.
bool Fits(const Algorithm& algorithm, bool chosen, const Problem& problem,
          const std::array<const void*, 4>& pointers) {
  if (algorithm.mark != kMark) return false;
  for (int i = 0; i < 4; ++i) {
    const Layout& layout = *problem.layouts()[i];
    const auto alignment = std::max<uint64_t>(algorithm.alignments[i], layout.element_bytes());
    if ((chosen && algorithm.types[i] != layout.type) ||
        reinterpret_cast<uint64_t>(pointers[i]) % alignment) {
      return false;
    }
  }
  return true;
}

// Returns the accesses of all batches to A, B, D and, if `reads_c`, to C. D may be C, but no other
// input.
std::vector<Access> AccessesOf(const Problem& problem, const std::array<const void*, 4>& pointers,
                               bool reads_c) {
  const auto [a, b, c, d] = pointers;
  std::vector<Access> accesses;
  for (int batch = 0; batch < problem.d.batches; ++batch) {
    std::vector<Access> inputs = {problem.a.Touch(a, batch, false),
                                  problem.b.Touch(b, batch, false)};
    if (reads_c && c != d) inputs.push_back(problem.c.Touch(c, batch, false));
    const Access output = problem.d.Touch(d, batch, true);
    for (const Access& input : inputs) {
      if (Overlap(input.bytes, output.bytes)) Fail("cublasLtMatmul: D overlaps an input");
    }
    accesses.insert(accesses.end(), inputs.begin(), inputs.end());
    accesses.push_back(output);
  }
  return accesses;
}

}  // namespace

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  MODEL_BLAS_CALL(cublasLtMatmulAlgoGetHeuristic);
  *found = 0;
  const Preference* wish = Get<Preference>(preference);
  Problem problem;
  if (!Get<int>(handle) || !wish || wanted < 1 || !Gather(call, desc, a, b, c, d, problem)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const cublasStatus_t status = Check(problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  call.RefuseUnless(!(wish->schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE) ||
                        problem.layouts()[3]->type == CUDA_R_32F,
                    "sums added up in place in a type narrower than f32");
  Algorithm algorithm = {kMark, wish->workspace >= kWorkspace ? kWorkspace : 0, wish->alignments};
  for (int i = 0; i < 4; ++i) algorithm.types[i] = problem.layouts()[i]->type;
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                              const void* alpha_at, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta_at,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream_handle) {
  MODEL_BLAS_CALL(cublasLtMatmul);
  const Gpu& gpu = call.Context();
  Stream* stream = call.Find(stream_handle);
  Problem problem;
  if (!Get<int>(handle) || !Gather(call, desc, a_layout, b_layout, c_layout, d_layout, problem)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const cublasStatus_t status = Check(problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (!stream || stream->gpu != &gpu || gpu.error != CUDA_SUCCESS) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }

  Algorithm algorithm = {.mark = kMark};
  if (algo) std::memcpy(static_cast<void*>(&algorithm), algo, sizeof algorithm);
  const std::array<const void*, 4> pointers = {a, b, c, d};
  if (!Fits(algorithm, algo != nullptr, problem, pointers) ||
      workspace_bytes < algorithm.workspace || reinterpret_cast<uint64_t>(workspace) % 256 ||
      (c == d && problem.c.ld != problem.d.ld)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }

  float alpha = 0, beta = 0;
  std::memcpy(&alpha, alpha_at, sizeof alpha);
  std::memcpy(&beta, beta_at, sizeof beta);
  std::vector<Access> accesses = AccessesOf(problem, pointers, beta != 0);
  if (algorithm.workspace) {
    const auto bytes = static_cast<int64_t>(algorithm.workspace);
    accesses.push_back({{reinterpret_cast<uint64_t>(workspace), 1, bytes, bytes}, true});
  }

  const auto parts = static_cast<int>(std::min<int64_t>(problem.m(), 1 + TheMachine().Random(4)));
  // B of each batch, as rows of f32, from the batch's first piece on.
  const auto all_of_b = std::make_shared<std::vector<std::vector<float>>>(problem.d.batches);
  const auto run = [=](int piece) {
    const int batch = piece / parts, part = piece % parts;
    std::vector<float>& rows = (*all_of_b)[batch];
    if (rows.empty())
      rows = View(problem.b, b, batch, problem.across_b()).All(problem.k(), problem.n());
    Multiply(problem, View(problem.a, a, batch, problem.across_a()), rows,
             View(problem.c, c, batch, false), View(problem.d, d, batch, false), alpha, beta,
             problem.m() * part / parts, problem.m() * (part + 1) / parts);
  };
  const CUresult submitted = TheMachine().Submit(
      *stream,
      {.name = call.name, .accesses = accesses, .pieces = problem.d.batches * parts, .run = run});
  return submitted == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
