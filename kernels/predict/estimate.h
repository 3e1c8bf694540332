// Estimates the time of a plan from its routes, without making it: fast, and only good enough to
// select the candidates that are worth a simulation.
#pragma once

#include <string>

#include "kernels/predict/network.h"
#include "kernels/predict/platform.h"
#include "kernels/schedule/demand.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/movement.h"
#include "kernels/schedule/plan.h"

namespace agmm {

// Lower bounds of any plan of a split, in ns: receiving what the busiest rank lacks through its
// port, and the flops of the rank that computes most.
struct SplitBound {
  double comm_ns = 0, compute_ns = 0;
  double time_ns() const { return comm_ns > compute_ns ? comm_ns : compute_ns; }
};
SplitBound BoundOf(const Problem& problem, const Platform& platform, const Split& split);

// The transfers and multiplies of an algorithm under a split, with each shard in one piece.
class RouteEstimate {
 public:
  // `network` is of `platform`. Builds all routes, so CountHops of each demand should be small.
  RouteEstimate(const Problem& problem, const Platform& platform, const Split& split,
                const Algorithm& algorithm, DType partials, Network* network);

  // The predicted time if each shard travels in `chunks` * `k_chunks` pieces.
  double TimeNs(int chunks, int k_chunks) const;
  // The longest side of an input's shard that can be cut into chunks, in elements; of the result if
  // no input travels.
  int64_t length() const { return length_; }
  // The same along K.
  int64_t depth() const { return depth_; }
  int64_t shard_bytes() const { return shard_bytes_; }
  // The shards of the largest input that a rank multiplies.
  int group() const { return group_; }
  // Ranks lack whole slices of K of an input.
  bool along_k() const { return along_k_; }
  bool travels() const { return inputs_.travels || results_.travels; }
  // "hidden since n_shard 4096 >= 2870", or "exposed since n_shard 512 < 2870": the length of the
  // other operand at a rank, and the one from which multiplies take as long as the transfers of an
  // input. Empty if no input is gathered along M or N.
  std::string HiddenText(const Problem& problem) const;

 private:
  // Operands that travel before, or after, the multiplies.
  struct Phase {
    bool travels = false;
    double busiest_ns = 0;  // of the busiest link, port or memory
    double cores_ns = 0;    // of the busiest rank's cores, without fixed costs
    double fixed_ns = 0;    // latencies and signals of the longest route
    double message_ns = 0;  // of a rank's cores, fixed costs of its messages
  };
  // The time until the last chunk has arrived, if bytes took none.
  double LatencyOf(const Movement& movement, Network* network) const;
  void AddPhases(const Problem& problem, const Demands& demands, const Algorithm& algorithm,
                 Network* network);
  void AddProduct(const Problem& problem, const Demands& demands);
  // The time of all multiplies of the busiest rank, of which each shard takes `pieces`.
  double ComputeNs(int chunks, int k_chunks) const;

  const Platform& platform_;
  const bool contiguous_;
  Phase inputs_, results_;
  int64_t length_ = 1, depth_ = 1, shard_bytes_ = 0;
  bool along_k_ = false;
  // The rank that computes most.
  double flops_ = 0, gathered_bytes_ = 0, stationary_bytes_ = 0, made_bytes_ = 0, packed_bytes_ = 0;
  DType dtype_ = DType::kF32;
  int group_ = 1;  // shards of the largest input that a rank multiplies
  // The dimension of the other operand that the gathered operand lacks, and its length.
  Dim stationary_dim_ = Dim::kN;
  int64_t stationary_length_ = 0;
};

}  // namespace agmm
