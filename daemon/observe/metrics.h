// The one registry of counters and gauges.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace agmm {

// Thread-safe. Names are lower case with underscores and end in a unit: "jobs_succeeded_total",
// "transport_sent_bytes_total".
class Metrics {
 public:
  class Counter {
   public:
    void Add(int64_t delta = 1) { value_.fetch_add(delta, std::memory_order_relaxed); }
    int64_t value() const { return value_.load(std::memory_order_relaxed); }

   private:
    std::atomic<int64_t> value_{0};
  };

  // Returns the counter of that name, made on first use; lives as long as the registry.
  Counter* counter(absl::string_view name);
  // Adds a value that is read at each Snapshot. Replaces a gauge of the same name.
  void SetGauge(absl::string_view name, std::function<double()> read);
  // Returns all values, sorted by name.
  std::vector<std::pair<std::string, double>> Snapshot() const;

 private:
  mutable std::mutex mutex_;  // guards both maps
  std::map<std::string, std::unique_ptr<Counter>> counters_;
  std::map<std::string, std::function<double()>> gauges_;
};

}  // namespace agmm
