// The combinations of shardings and splits of an AdviceRequest, by estimated time.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/predict/advice_request.h"
#include "kernels/predict/platform.h"
#include "kernels/predict/shardings.h"

namespace agmm {

// One use of all axes in each product.
struct Combination {
  std::vector<AxisUses> uses;  // by product
  double estimate_ns = 0;      // of all products, each the longer of multiplies and movements
  double moves_ns = 0;         // of the movements alone
  int64_t shard_bytes = 0;     // of all operands at a rank
};

class ShardingSearch {
 public:
  // Keeps references to both.
  ShardingSearch(const AdviceRequest& request, const Platform& platform);

  // Finds the combinations whose shards fit the memory, the lowest estimate first. Errors:
  // INVALID_ARGUMENT if there are too many.
  absl::Status Run();

  const std::vector<Combination>& found() const { return found_; }
  int64_t examined() const { return examined_; }
  int64_t too_large() const { return too_large_; }
  // The smallest memory of the shards of a combination.
  int64_t least_bytes() const { return least_bytes_; }

  // The uses of each axis in all products, equal axes sorted: the same for combinations that differ
  // by a permutation of equal axes.
  using Columns = std::vector<std::vector<AxisUse>>;
  Columns ColumnsOf(const std::vector<AxisUses>& uses) const;

  const Freedoms& FreedomsOf(size_t product) const { return freedoms_[product]; }
  const std::vector<int>& order() const { return order_; }

 private:
  // A use of all axes in one product.
  struct Candidate {
    AxisUses uses;
    double estimate_ns = 0, moves_ns = 0;
    int64_t shard_bytes = 0;  // without the operand that the product before it makes
  };
  using Cuts = std::vector<Cut>;  // of one operand, by axis

  void SetFreedoms();
  void SetOrder();
  void SetClasses();
  bool IsFixed(int axis) const;
  // Adds all candidates of a product. If it is the only one, candidates that differ by a
  // permutation of equal axes are added once.
  absl::Status AddCandidates(size_t product);
  Candidate CandidateOf(size_t product, AxisUses uses);
  int64_t ShardBytesOf(size_t product, Operand operand, const AxisUses& uses) const;
  // Extends each of found_ by all candidates of `product` that take its result as it is sharded.
  void Extend(size_t product);
  // Reduces combinations with the same sharding of the result to the most promising ones.
  void Thin(size_t product);
  // Keeps one of the combinations that differ by a permutation of equal axes.
  void DropPermuted();

  const AdviceRequest& request_;
  const Platform& platform_;
  const Mesh& mesh_;
  std::vector<Freedoms> freedoms_;  // by product
  std::vector<Operand> linked_;     // by product: the input that an earlier product makes, or -1
  std::vector<int> order_;          // all axes
  std::vector<int> class_;          // by axis: the first of the axes that equal it
  std::map<std::vector<int>, Inflow> inflows_;      // by axes
  std::vector<std::vector<Candidate>> candidates_;  // by product
  std::vector<int64_t> least_after_;                // by product: of shards of later ones
  std::vector<Combination> found_;
  int64_t examined_ = 0, too_large_ = 0, least_bytes_ = 0;
};

}  // namespace agmm
