// The kernels of sm90/product.cu, loaded into one context, and tensor maps for them.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/sm90/product_arguments.h"
#include "kernels/cuda/sm90/product_config.h"

namespace agmm {

// A matrix in memory: the address of element (0, 0), which any element of a row may have.
struct MatrixAt {
  CUdeviceptr address = 0;
  int64_t rows = 0, cols = 0, pitch_bytes = 0;  // the pitch is a multiple of 16
  DType dtype = DType::kBF16;
  bool operator==(const MatrixAt&) const = default;
};

// Thread-compatible; const methods are thread-safe. Results are the driver's.
class ProductKernels {
 public:
  explicit ProductKernels(const Driver& driver) : driver_(driver) {}
  ProductKernels(const ProductKernels&) = delete;
  ProductKernels& operator=(const ProductKernels&) = delete;

  // Loads all kernels for the current context, so that none is loaded while another one waits. To
  // be called once.
  CUresult Load();
  // Returns how many clusters of any kernel that has clusters may be resident at a time.
  int most_clusters() const { return most_clusters_; }
  // Requires that no kernel runs, and that the context is current.
  void Unload();

  // Sets `map` to the matrix for boxes of `box_rows` rows and 128 bytes of them, and `view->x` to
  // the column at which the matrix begins in the map. The host alone computes it.
  CUresult Map(const MatrixAt& matrix, int box_rows, CUtensorMap* map, sm90::View* view) const;
  // Queues the kernel on `stream`, whose context must be current.
  CUresult Launch(const sm90::ProductConfig& config, const sm90::Arguments& arguments,
                  CUstream stream) const;

 private:
  CUresult CountClusters(const sm90::ProductConfig& config, CUfunction function,
                         int* clusters) const;

  const Driver& driver_;
  CUlibrary library_ = nullptr;
  std::map<std::string, CUfunction> functions_;
  int most_clusters_ = std::numeric_limits<int>::max();
};

}  // namespace agmm
