// Epoch after epoch with no barrier: each rank rewrites its A and B and poisons its C as soon as
// its own epoch has ended, while the others may still be working.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/deadline.h"
#include "kernels/schedule/index.h"
#include "tests/conformance/harness.h"

namespace agmm::test {

// Inputs repeat with a period, so that their products are computed once; neighbours always differ.
inline constexpr int kPeriod = 7;

class Endless {
 public:
  Endless(PreparedPlan& plan, uint64_t epochs)
      : plan_(plan), epochs_(epochs), ended_(plan.rank_count()) {
    const Problem& problem = plan.problem();
    for (int i = 0; i < kPeriod; ++i) {
      a_.push_back(SmallIntegers(ShapeOf(problem).m, ShapeOf(problem).k, TestSeed() + 2 * i));
      b_.push_back(SmallIntegers(ShapeOf(problem).k, ShapeOf(problem).n, TestSeed() + 2 * i + 1));
      c_.push_back(MatrixProduct(a_.back(), b_.back()));
    }
  }
  // Returns the number of wrong elements of C over all ranks and epochs, or the first failure.
  absl::StatusOr<int64_t> Go() {
    for (Rank rank = 0; rank < plan_.rank_count(); ++rank) Next(rank, 1);
    for (const EpochReport& report : ended_.Wait())
      if (!report.status.ok()) return report.status;
    return wrong_;
  }

 private:
  // The environment between two epochs of a rank; nothing else separates it from its peers.
  void Next(Rank rank, uint64_t epoch) {
    plan_.Write(rank, kA, a_[epoch % kPeriod]);
    plan_.Write(rank, kB, b_[epoch % kPeriod]);
    plan_.Poison(rank, kC);
    plan_.Run(rank, epoch, epoch, Deadline::After(absl::Minutes(2)),
              [this, rank, epoch, ended = ended_.At(rank)](const EpochReport& report) {
                wrong_ += plan_.CountWrong(rank, c_[epoch % kPeriod]);
                if (!report.status.ok() || epoch == epochs_) return ended(report);
                Next(rank, epoch + 1);
              });
  }

  PreparedPlan& plan_;
  const uint64_t epochs_;
  std::vector<TestMatrix> a_, b_, c_;
  std::atomic<int64_t> wrong_{0};
  Reports ended_;
};

}  // namespace agmm::test
