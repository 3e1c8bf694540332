// The parts that the MPI programs share: the process among its ranks, and times of work that all
// ranks begin together.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "tests/bench/contender_rank.h"

namespace agmm::bench {

// This process among those of MPI_COMM_WORLD. MPI must be initialized.
class MpiProcess {
 public:
  MpiProcess() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const { return rank_; }

 protected:
  int rank_ = 0, size_ = 1;
};

// Waits until all ranks begin, and returns that moment in microseconds.
inline double BeginTogether() {
  double start = NowUs() + kLeadUs;
  MPI_Allreduce(MPI_IN_PLACE, &start, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  WaitUntil(start);
  return start;
}

// Returns the microseconds of one of `products` calls in a row on this rank.
template <class Work>
double TimeTogether(const Work& work, int products) {
  const double start = BeginTogether();
  for (int i = 0; i < products; ++i) work();
  return (NowUs() - start) / products;
}

// Returns TimeTogether of `count` runs, as text.
template <class Work>
std::string TimesTogether(const Work& work, int count, int products) {
  std::ostringstream text;
  text.precision(12);
  for (int i = 0; i < count; ++i) text << TimeTogether(work, products) << " ";
  return text.str();
}

// Returns the least of a few times, each of the slowest rank; every rank gets the same result.
template <class Work>
double FastestTogether(const Work& work, int products) {
  constexpr int kTrialRuns = 2;
  double best = TimeTogether(work, products);  // prepares, too
  for (int i = 0; i < kTrialRuns; ++i) {
    double us = TimeTogether(work, products);
    MPI_Allreduce(MPI_IN_PLACE, &us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    best = i == 0 ? us : std::min(best, us);
  }
  return best;
}

}  // namespace agmm::bench
