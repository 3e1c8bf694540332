// A ring of ranks on one GPU, each with its own matrices, slots and SMs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/sm90_gpu.h"

namespace agmm::sm90 {

// Each rank multiplies all of A, of which it has some rows, by its own columns of B.
class LoopbackRing {
 public:
  struct Shape {
    int ranks = 0;
    int64_t rows = 0, cols = 0, k = 0;  // rows of A and columns of B of one rank
    int64_t offset = 0;                 // of all matrices: HopperGpu::Make
    DType dtype = DType::kF16;
  };
  // kCarried: the kernels send A around the ring. kCopies: each rank copies what it lacks, and a
  // second copy raises the slot for which its kernel waits.
  enum class Send { kCarried, kCopies };

  LoopbackRing(HopperGpu& gpu, const Shape& shape);

  // Queues new operands, and NaN for everything that an epoch computes or moves.
  void Refill(FillKind kind, uint64_t seed);
  // Runs an epoch; returns its microseconds. With a delay_seed, kernels are launched in any order,
  // each behind a delay on the GPU.
  double Run(Send send, uint64_t delay_seed = 0);
  // Runs one rank alone, which misses the others' chunks, and aborts it. Its results are undefined.
  void RunAborted();
  // Returns the number of rows of C that are not those of cuBLASLt.
  int64_t CountWrongRows();
  // The kernel of a rank.
  const ProductConfig& config(Send send) const {
    return send == Send::kCarried ? carries_ : waits_;
  }

 private:
  struct Rank {
    DeviceMatrix a, b, c;   // a: all of it, with the own rows and places for the others
    CUdeviceptr slots = 0;  // a word of 64 bits for each chunk of A
    CUdeviceptr counters = 0;
    CUdeviceptr delays = 0;  // written for the time that it takes
    CUevent ready = nullptr, multiplied = nullptr, copied = nullptr;
  };

  ProductConfig Choose(bool sends, int sms) const;
  DeviceMatrix Chunk(const Rank& rank, int chunk) const {
    return rank.a.Rows(chunk * shape_.rows, shape_.rows);
  }
  // The chunk that a rank multiplies at a step.
  int ChunkAt(int rank, int step) const { return (rank - step + shape_.ranks) % shape_.ranks; }
  // The streams of the ranks wait for all of them and for control().
  void Begin();
  // Waits for all streams; `work` names what they do.
  void End(const std::string& work);
  void Copy(int rank);
  void Launch(int rank, Send send);
  void Delay(int rank, uint64_t random);

  HopperGpu& gpu_;
  const Shape shape_;
  ProductConfig carries_, waits_;
  std::vector<Rank> ranks_;
  DeviceMatrix whole_a_, wanted_;
  CUevent begin_ = nullptr, end_ = nullptr;
  uint64_t epoch_ = 0;
  uint64_t* epoch_word_ = nullptr;  // for the copies that raise slots
};

}  // namespace agmm::sm90
