#include "daemon/observe/metrics.h"

namespace agmm {

Metrics::Counter* Metrics::counter(absl::string_view name) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<Counter>& counter = counters_[std::string(name)];
  if (counter == nullptr) counter = std::make_unique<Counter>();
  return counter.get();
}

void Metrics::SetGauge(absl::string_view name, std::function<double()> read) {
  std::lock_guard lock(mutex_);
  gauges_[std::string(name)] = std::move(read);
}

std::vector<std::pair<std::string, double>> Metrics::Snapshot() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, double> all;
  for (const auto& [name, counter] : counters_) all[name] = static_cast<double>(counter->value());
  for (const auto& [name, read] : gauges_) all[name] = read();
  return {all.begin(), all.end()};
}

}  // namespace agmm
