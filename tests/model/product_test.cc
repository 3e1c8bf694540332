// cuBLASLt's products.
#include <cmath>
#include <limits>

#include "tests/model/floats.h"
#include "tests/model/model_fixture.h"

namespace {

struct Matrix {
  int64_t rows = 0, cols = 0, ld = 0;
  cublasLtOrder_t order = CUBLASLT_ORDER_ROW;

  int64_t lines() const { return order == CUBLASLT_ORDER_ROW ? rows : cols; }
  int64_t at(int64_t row, int64_t column) const {
    return order == CUBLASLT_ORDER_ROW ? row * ld + column : column * ld + row;
  }
};

class ProductTest : public ModelTest {
 protected:
  void Begin(const std::string& options = "") {
    Start(options);
    ASSERT_EQ(blas.Open(AGMM_MODEL_FOLDER "/libcublasLt.so.13"), "");
    ASSERT_EQ(blas.cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(blas.cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(blas.cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    stream = Stream();
  }

  void TearDown() override {
    for (cublasLtMatrixLayout_t layout : layouts) blas.cublasLtMatrixLayoutDestroy(layout);
    if (handle) {
      blas.cublasLtMatmulPreferenceDestroy(preference);
      blas.cublasLtMatmulDescDestroy(product);
      blas.cublasLtDestroy(handle);
    }
    ModelTest::TearDown();
  }

  cublasLtMatrixLayout_t Layout(const Matrix& matrix, cudaDataType type) {
    cublasLtMatrixLayout_t layout = nullptr;
    EXPECT_EQ(blas.cublasLtMatrixLayoutCreate(&layout, type, matrix.rows, matrix.cols, matrix.ld),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(blas.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER,
                                                    &matrix.order, sizeof matrix.order),
              CUBLAS_STATUS_SUCCESS);
    layouts.push_back(layout);
    return layout;
  }

  // Small integers, but `other` between the lines.
  CUdeviceptr Upload(const Matrix& matrix, cudaDataType type, int seed) {
    const int64_t count = matrix.lines() * matrix.ld;
    std::vector<float> values(count, std::numeric_limits<float>::quiet_NaN());
    for (int64_t i = 0; i < matrix.rows; ++i) {
      for (int64_t j = 0; j < matrix.cols; ++j) values[matrix.at(i, j)] = Value(i, j, seed);
    }
    return Upload(values, type);
  }

  CUdeviceptr Upload(const std::vector<float>& values, cudaDataType type) {
    const size_t bytes = values.size() * (type == CUDA_R_32F ? 4 : 2);
    char* host = Host(bytes);
    for (size_t i = 0; i < values.size(); ++i) View(host, type).Set(0, i, values[i]);
    const CUdeviceptr memory = Device(bytes);
    EXPECT_CU(cu.cuMemcpyHtoDAsync(memory, host, bytes, stream));
    return memory;
  }

  std::vector<float> Download(CUdeviceptr memory, int64_t count, cudaDataType type) {
    const size_t bytes = count * (type == CUDA_R_32F ? 4 : 2);
    char* host = Host(bytes);
    EXPECT_CU(cu.cuMemcpyDtoHAsync(host, memory, bytes, stream));
    EXPECT_CU(cu.cuStreamSynchronize(stream));
    return View(host, type).All(1, count);
  }

  static model::Floats View(char* at, cudaDataType type) {
    return {type == CUDA_R_32F   ? model::Floats::kF32
            : type == CUDA_R_16F ? model::Floats::kF16
                                 : model::Floats::kBf16,
            at, 0, 1};
  }

  static float Value(int64_t row, int64_t column, int seed) {
    return static_cast<float>((row * 7 + column * 3 + seed * 5) % 9 - 4);
  }

  cublasStatus_t Heuristic(cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                           cublasLtMatrixLayout_t d) {
    int found = 0;
    const cublasStatus_t status = blas.cublasLtMatmulAlgoGetHeuristic(
        handle, product, a, b, d, d, preference, 1, &result, &found);
    EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS);
    return status;
  }

  // d = alpha a b + beta d
  cublasStatus_t Multiply(CUdeviceptr a, cublasLtMatrixLayout_t a_layout, CUdeviceptr b,
                          cublasLtMatrixLayout_t b_layout, CUdeviceptr d,
                          cublasLtMatrixLayout_t d_layout, float alpha, float beta,
                          CUdeviceptr workspace = 0, size_t bytes = 0, CUstream on = nullptr) {
    const auto pointer = [](CUdeviceptr at) { return reinterpret_cast<void*>(at); };
    return blas.cublasLtMatmul(handle, product, &alpha, pointer(a), a_layout, pointer(b), b_layout,
                               &beta, pointer(d), d_layout, pointer(d), d_layout, &result.algo,
                               pointer(workspace), bytes, on ? on : stream);
  }

  BlasTable blas;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t result = {};
  std::vector<cublasLtMatrixLayout_t> layouts;
  CUstream stream = nullptr;
};
using ProductDeathTest = ProductTest;

TEST_F(ProductTest, IntegersAreExactForEachTypeOrderAndPitch) {
  Begin("order=random");
  const int64_t m = 5, n = 7, k = 11;
  for (cudaDataType in : {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF}) {
    for (cudaDataType out : {CUDA_R_32F, in}) {
      for (int orders = 0; orders < 8; ++orders) {
        SCOPED_TRACE(testing::Message() << in << " to " << out << ", orders " << orders);
        const auto matrix = [&](int64_t rows, int64_t cols, int bit) {
          const bool by_row = orders >> bit & 1;
          return Matrix{rows, cols, (by_row ? cols : rows) + bit,
                        by_row ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL};
        };
        const Matrix a = matrix(m, k, 0), b = matrix(k, n, 1), d = matrix(m, n, 2);
        const auto a_layout = Layout(a, in), b_layout = Layout(b, in), d_layout = Layout(d, out);
        const CUdeviceptr at_a = Upload(a, in, 1), at_b = Upload(b, in, 2);
        const CUdeviceptr at_d = Upload(d, out, 3);
        ASSERT_EQ(Heuristic(a_layout, b_layout, d_layout), CUBLAS_STATUS_SUCCESS);
        ASSERT_EQ(Multiply(at_a, a_layout, at_b, b_layout, at_d, d_layout, 2, 1),
                  CUBLAS_STATUS_SUCCESS);
        const std::vector<float> values = Download(at_d, d.lines() * d.ld, out);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += Value(i, l, 1) * Value(l, j, 2);
            const float whole = 2 * sum + Value(i, j, 3);
            ASSERT_EQ(values[d.at(i, j)],
                      out == CUDA_R_16BF ? model::FromBf16(model::ToBf16(whole)) : whole);
          }
        }
        // The bytes between the lines stay.
        if (d.ld > d.cols && d.order == CUBLASLT_ORDER_ROW) {
          EXPECT_TRUE(std::isnan(values[d.ld - 1]));
        }
      }
    }
  }
}

TEST_F(ProductTest, TransposedInputsAreReadAcross) {
  Begin();
  const cublasOperation_t across = CUBLAS_OP_T;
  EXPECT_EQ(blas.cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &across,
                                                sizeof across),
            CUBLAS_STATUS_SUCCESS);
  const Matrix a = {3, 2, 2}, b = {3, 2, 2}, d = {2, 2, 2};
  const auto a_layout = Layout(a, CUDA_R_32F), b_layout = Layout(b, CUDA_R_32F);
  const auto d_layout = Layout(d, CUDA_R_32F);
  const CUdeviceptr at_a = Upload({1, 2, 3, 4, 5, 6}, CUDA_R_32F);
  const CUdeviceptr at_b = Upload({1, 0, 0, 1, 1, 1}, CUDA_R_32F);
  const CUdeviceptr at_d = Device(16);
  ASSERT_EQ(Heuristic(a_layout, b_layout, d_layout), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Multiply(at_a, a_layout, at_b, b_layout, at_d, d_layout, 1, 0), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Download(at_d, 4, CUDA_R_32F), (std::vector<float>{6, 8, 8, 10}));
}

TEST_F(ProductTest, BatchesLieStridesApart) {
  Begin();
  const Matrix one = {1, 1, 1};
  const auto layout = Layout(one, CUDA_R_32F);
  const int32_t batches = 3;
  const int64_t stride = 2;
  blas.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches,
                                        sizeof batches);
  blas.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                        &stride, sizeof stride);
  const CUdeviceptr at_a = Upload({2, 0, 3, 0, 4}, CUDA_R_32F);
  const CUdeviceptr at_d = Upload({0, 9, 0, 9, 0}, CUDA_R_32F);
  ASSERT_EQ(Heuristic(layout, layout, layout), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Multiply(at_a, layout, at_a, layout, at_d, layout, 1, 0), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Download(at_d, 5, CUDA_R_32F), (std::vector<float>{4, 9, 9, 9, 16}));
}

TEST_F(ProductTest, WithoutBetaCIsNotReadAndNanIsNotHidden) {
  Begin();
  const auto layout = Layout({1, 1, 1}, CUDA_R_32F);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const CUdeviceptr two = Upload({2}, CUDA_R_32F), zero = Upload({0}, CUDA_R_32F);
  const CUdeviceptr poison = Upload({nan}, CUDA_R_32F);
  ASSERT_EQ(Heuristic(layout, layout, layout), CUBLAS_STATUS_SUCCESS);
  Multiply(two, layout, two, layout, poison, layout, 1, 0);
  EXPECT_EQ(Download(poison, 1, CUDA_R_32F)[0], 4);
  const CUdeviceptr again = Upload({nan}, CUDA_R_32F);
  Multiply(again, layout, zero, layout, two, layout, 1, 0);
  EXPECT_TRUE(std::isnan(Download(two, 1, CUDA_R_32F)[0]));
}

TEST_F(ProductTest, ShapesThatDoNotFitAreRefused) {
  Begin();
  const auto a = Layout({2, 3, 3}, CUDA_R_16BF), b = Layout({3, 4, 4}, CUDA_R_16BF);
  const auto d = Layout({2, 4, 4}, CUDA_R_16BF);
  EXPECT_EQ(Heuristic(a, b, d), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Heuristic(b, a, d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Heuristic(a, Layout({3, 4, 3}, CUDA_R_16BF), d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Heuristic(a, Layout({3, 4, 4}, CUDA_R_16F), d), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Heuristic(a, b, Layout({2, 4, 4}, CUDA_R_16F)), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Heuristic(a, b, Layout({2, 4, 4}, CUDA_R_32F)), CUBLAS_STATUS_SUCCESS);
}

TEST_F(ProductTest, PointersHaveTheAlignmentGivenToTheHeuristic) {
  Begin();
  const auto layout = Layout({1, 1, 1}, CUDA_R_32F);
  const CUdeviceptr a = Upload({1, 2}, CUDA_R_32F), d = Device(8);
  ASSERT_EQ(Heuristic(layout, layout, layout), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(a + 4, layout, a, layout, d, layout, 1, 0), CUBLAS_STATUS_INVALID_VALUE);
  const uint32_t alignment = 4;
  blas.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                            &alignment, sizeof alignment);
  ASSERT_EQ(Heuristic(layout, layout, layout), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(a + 4, layout, a, layout, d, layout, 1, 0), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(a + 2, layout, a, layout, d, layout, 1, 0), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(ProductDeathTest, TwoStreamsMayNotShareAWorkspace) {
  const auto run = [&] {
    Begin();
    const auto layout = Layout({1, 1, 1}, CUDA_R_32F);
    const uint64_t bytes = kMiB;
    const CUdeviceptr a = Upload({1}, CUDA_R_32F);
    const CUdeviceptr workspace = Device(bytes);
    cu.cuStreamSynchronize(stream);
    blas.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &bytes, sizeof bytes);
    Heuristic(layout, layout, layout);
    Multiply(a, layout, a, layout, Device(4), layout, 1, 0, workspace, bytes);
    Multiply(a, layout, a, layout, Device(4), layout, 1, 0, workspace, bytes, Stream());
  };
  EXPECT_DEATH(run(), "race: cublasLtMatmul #3 on stream 1 of GPU 0 writes 1 x 65536 bytes");
}

TEST_F(ProductDeathTest, AnUnknownCallEndsTheTest) {
  Begin();
  const int value = 0;
  EXPECT_DEATH(blas.cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                   &value, sizeof value),
               "cublasLtMatmulDescSetAttribute: attribute 8 is not in the model");
}

TEST_F(ProductTest, TheNthProductFails) {
  Begin("fail=cublasLtMatmul@1");
  const auto layout = Layout({1, 1, 1}, CUDA_R_32F);
  const CUdeviceptr a = Upload({3}, CUDA_R_32F), d = Device(4);
  ASSERT_EQ(Heuristic(layout, layout, layout), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(a, layout, a, layout, d, layout, 1, 0), CUBLAS_STATUS_INTERNAL_ERROR);
  EXPECT_EQ(Multiply(a, layout, a, layout, d, layout, 1, 0), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Download(d, 1, CUDA_R_32F)[0], 9);
}

TEST(FloatsTest, ConversionsRoundToTheNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = model::FromF16(half);
    if (value != value) {
      EXPECT_NE(model::FromF16(model::ToF16(value)), model::FromF16(model::ToF16(value)));
    } else {
      EXPECT_EQ(model::ToF16(value), half);
    }
    const float wide = model::FromBf16(half);
    if (wide == wide) {
      EXPECT_EQ(model::ToBf16(wide), half);
    }
  }
  EXPECT_EQ(model::FromF16(model::ToF16(2049)), 2048);
  EXPECT_EQ(model::FromF16(model::ToF16(2051)), 2052);
  EXPECT_EQ(model::FromF16(model::ToF16(65519)), 65504);
  EXPECT_EQ(model::ToF16(65520), 0x7c00);
  EXPECT_EQ(model::ToF16(0x1p-25f), 0);
  EXPECT_EQ(model::ToF16(0x1.8p-25f), 1);
  EXPECT_EQ(model::FromBf16(model::ToBf16(257)), 256);
  EXPECT_EQ(model::FromBf16(model::ToBf16(259)), 260);
}

}  // namespace
