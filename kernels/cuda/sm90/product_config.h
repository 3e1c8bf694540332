// The choice of a kernel of product.cu for a product, and its launch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/sm90/product_arguments.h"

namespace agmm::sm90 {

// The products of a rank that one launch computes.
struct ProductProblem {
  DType in = DType::kBF16, out = DType::kBF16;  // of A and B; of C
  int64_t rows = 0, cols = 0;                   // of the largest block of C
  int64_t tiles_rows = 0;                       // rows of all blocks, each rounded up to tiles
  bool sends = false;                           // the kernel sends pieces of A on
  int sms = 0;                                  // of the GPU, that the kernel may use
  int clusters = 0;   // clusters of 2 CTAs that may be resident at a time; 0: none
  bool even = false;  // each block has an even number of rows of tiles
};

struct ProductConfig {
  std::string kernel;  // its name in the image
  int tile_cols = 0;
  int cluster = 1;                        // CTAs, which share the loads of B
  int stages = 0;                         // of shared memory
  int shared_bytes = 0;                   // dynamic
  int ctas = 0;                           // a multiple of the cluster; all must be resident
  int raster_rows = 0, send_columns = 0;  // of Arguments
};

// Errors: INVALID_ARGUMENT for an empty product or no SM; UNIMPLEMENTED, which names
// their kind, for products that cuBLASLt computes: f32 inputs, results of another 16-bit type, and
// 64 rows or fewer, for which a tile of 128 rows is half empty.
absl::StatusOr<ProductConfig> ChooseProduct(const ProductProblem& problem);

// Checks what the kernel takes for granted: the numbers of blocks, pieces and maps, sizes, the
// columns that send, and that a block which sends and waits sends in its first round. Errors:
// INVALID_ARGUMENT.
absl::Status CheckArguments(const Arguments& arguments, const ProductConfig& config);

// All kernels for the dtypes of tensors, without a grid.
std::vector<ProductConfig> AllProducts();

// The kernel with tiles of this width; the types are "f16", "bf16", "e4m3" and "f32". Only those
// with wide tiles may have a cluster of 2.
ProductConfig ProductKernel(const std::string& in, const std::string& out, int tile_cols,
                            bool sends, int cluster = 1);

}  // namespace agmm::sm90
