#include "daemon/measure/epoch_times.h"

#include <algorithm>
#include <cmath>

namespace agmm::measure {
namespace {

// The ranks of a node have taken turns if they take longer together than the slowest one by this
// factor. In a shorter time a rank that has begun late looks like it.
constexpr double kTurns = 1.2, kLeastTurnsUs = 1e3;

struct Interval {
  double begin_us = INFINITY, end_us = -INFINITY;
  double length_us() const { return end_us - begin_us; }
};

}  // namespace

EpochTimes MeanEpochNs(const v1::LaunchDone& done) {
  EpochTimes times;
  Interval all;
  double longest_us = 0;
  int most_epochs = 0;
  for (const v1::RankReport& rank : done.ranks()) {
    const int epochs = rank.epoch_us_size();
    if (epochs == 0) continue;
    Interval own = {rank.start_unix_us(), rank.start_unix_us() + rank.epoch_us(0)};
    if (epochs > 1) own = {own.end_us, rank.epoch_start_unix_us() + rank.epoch_us(epochs - 1)};
    const int counted = std::max(epochs - 1, 1);
    if (!std::isfinite(own.length_us())) continue;
    times[rank.rank()] = own.length_us() * 1e3 / counted;
    all = {std::min(all.begin_us, own.begin_us), std::max(all.end_us, own.end_us)};
    longest_us = std::max(longest_us, own.length_us());
    most_epochs = std::max(most_epochs, counted);
  }
  if (all.length_us() < std::max(kTurns * longest_us, kLeastTurnsUs)) return times;
  for (auto& [rank, time_ns] : times) time_ns = all.length_us() * 1e3 / most_epochs;
  return times;
}

}  // namespace agmm::measure
