// Decides which probes measure a world, one after the other, and keeps their times. Pure.
//
// Sizes grow until a probe takes long enough for a clear figure, and are chosen so that none takes
// much longer: a job that is submitted meanwhile waits for it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/measure/probe.h"

namespace agmm::measure {

// The ranks of a world, and the memory that a probe may take on each of them.
struct Site {
  std::vector<int> node_of_rank, island_of_rank;
  std::vector<std::string> kind_of_rank;  // "cpu"
  int64_t max_bytes = 0;
  bool operator==(const Site&) const = default;
};

// The side of a product that takes hardly more than its fixed costs.
inline constexpr int64_t kLeastSide = 16;

// Products whose times are subtracted from each other are timed in this number of rounds, because
// another program may disturb all of a round. A cost is the median of those of the rounds.
inline constexpr int kRounds = 3;

// Times of an epoch of one probe in ns, by world rank.
using EpochTimes = std::map<int, double>;

// Probes that differ only in their sizes, which grow.
struct Series {
  Probe next;  // the last one if the series is over
  bool over = false;
  std::vector<std::pair<int64_t, EpochTimes>> timed;  // by size, ascending
  std::string path;                                   // of its bytes between ranks: "tcp"
  std::string error;                                  // why it ended early; empty if it did not
};

class Survey {
 public:
  explicit Survey(const Site& site);

  // Returns the probe to run next; none if all are done. The same until Add or Fail.
  std::optional<Probe> Next() const;
  void Add(const EpochTimes& times, const std::string& path);
  // Ends the series of the probe, which cannot be run.
  void Fail(const std::string& why);

  // Series that are over, and all of them.
  int done() const { return static_cast<int>(current_); }
  int count() const { return static_cast<int>(series_.size()); }
  const std::vector<Series>& series() const { return series_; }
  const Site& site() const { return site_; }

 private:
  void AddPair(int from, int to);
  void Add(Probe::Kind kind, std::vector<int> ranks, DType dtype, int64_t size);
  // Goes on to the next series.
  void Advance();
  // Sizes the products that tell how much of their time the movement of rows takes from them, by
  // the times of links and products. Returns false if none within the bounds hides the movement.
  bool SizeRows(Probe* probe) const;
  // Returns the next size of the current series after a probe of `size` that took `took_ns`; 0: it
  // is over.
  int64_t SizeAfter(const Series& series, int64_t size, double took_ns) const;
  int64_t MaxSize(const Probe& probe) const;

  const Site site_;
  std::vector<Series> series_;
  size_t current_ = 0;
};

}  // namespace agmm::measure
