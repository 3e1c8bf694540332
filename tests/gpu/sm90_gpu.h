// A Hopper GPU for sm90_bench: matrices in its memory, the kernels of kernels/cuda/sm90 and
// cuBLASLt on them, and waits that end.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/fill_value.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sm90/product_config.h"
#include "tests/gpu/scratch.h"

namespace agmm::sm90 {

// Row-major; rows are a multiple of 128 bytes apart.
struct DeviceMatrix {
  CUdeviceptr at = 0;
  int64_t rows = 0, cols = 0, pitch_bytes = 0;
  DType dtype = DType::kBF16;

  int64_t bytes() const { return rows * pitch_bytes; }
  DeviceMatrix Rows(int64_t first, int64_t count) const {
    return {at + first * pitch_bytes, count, cols, pitch_bytes, dtype};
  }
};

// Ends the program with 1, without releasing anything, because work may never end.
[[noreturn]] void Die(const std::string& why);

// The first GPU. Everything is queued on streams of its context and never waits. An error of the
// driver or of cuBLASLt ends the program.
class HopperGpu : public GpuScratch {
 public:
  // Ranks have streams of their own, which are created once: a GPU has 32 hardware queues, and
  // kernels that wait for each other must not share one.
  static constexpr int kMostRanks = 8;

  // Returns "", or the reason why the kernels cannot run on this GPU.
  std::string Start();
  // Releases everything.
  void Finish();

  void Failed(const std::string& call, CUresult result) override;
  const std::string& name() const { return name_; }
  bool is_model() const { return name_.find("MODEL") != std::string::npos; }
  int sms() const { return sms_; }
  CUstream control() const { return control_; }
  CUstream products(int rank) const { return products_[rank]; }
  CUstream copies(int rank) const { return copies_[rank]; }
  // Kernels that wait end without a result once the word is not zero.
  const uint64_t* abort() const { return reinterpret_cast<const uint64_t*>(abort_); }

  // Allocates a matrix that begins `offset` elements behind a multiple of 256 bytes.
  DeviceMatrix Make(int64_t rows, int64_t cols, DType dtype, int64_t offset = 0);
  // Queues the values of a matrix of which this is the part from `first_index` on.
  void Fill(const DeviceMatrix& matrix, FillKind kind, uint64_t seed, int64_t first_index,
            CUstream stream);
  // Queues NaN for all elements.
  void Poison(const DeviceMatrix& matrix, CUstream stream);

  // Sets the map with this number for boxes of `box_rows` rows and 128 bytes of each.
  View Map(const DeviceMatrix& matrix, int box_rows, Arguments& arguments, int number);
  // Queues a kernel of product.cu.
  void Launch(const ProductConfig& config, const Arguments& arguments, CUstream stream);
  // Queues c = a * b by cuBLASLt.
  void Multiply(const DeviceMatrix& a, const DeviceMatrix& b, const DeviceMatrix& c,
                CUstream stream);

  // Keeps control() busy for a while, so that all work that is queued behind it is there before the
  // first of it begins, and the host's time is not measured.
  void HoldBack();
  // Records `event` on `from`, and lets `to` wait for it.
  void Order(CUstream from, CUevent event, CUstream to);
  // Queues the abort word's value, beside all other work.
  void SetAbort(bool aborted);
  // Blocks until the event. If it does not come, aborts the kernels and ends the program; `work`
  // names what was waited for.
  void Await(CUevent event, const std::string& work);
  double Microseconds(CUevent begin, CUevent end);
  // Returns the number of rows with different bits. All work on the matrices has ended.
  int64_t CountDifferentRows(const DeviceMatrix& one, const DeviceMatrix& other);

 private:
  bool Comes(CUevent event);
  CUfunction Function(const ProductConfig& config);

  std::string name_;
  int sms_ = 0;
  CUstream control_ = nullptr, aborts_ = nullptr;
  std::vector<CUstream> products_, copies_;
  CUdeviceptr abort_ = 0, workspace_ = 0, held_ = 0;
  uint64_t* abort_values_ = nullptr;  // 0 and 1
  CUevent compared_ = nullptr, abort_set_ = nullptr;
  std::vector<char*> host_;  // two places for matrices that are compared
  int64_t host_bytes_ = 0;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<CudaGemm> gemm_;
  std::vector<std::shared_ptr<const CudaProduct>> kept_;  // so that they are chosen once
  CUlibrary library_ = nullptr;
  std::map<std::string, CUfunction> functions_;
};

}  // namespace agmm::sm90
