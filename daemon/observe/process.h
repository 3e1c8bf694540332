// Gauges of this process.
#pragma once

#include <vector>

#include "daemon/observe/metrics.h"

namespace agmm {

// process_resident_bytes, process_uptime_seconds, process_open_fds.
void AddProcessGauges(Metrics* metrics);

// heap_resident_bytes: what the heaps, by their files, have taken of the machine. Memory that has
// been written stays when it is free again, so that the next tensor there finds it at hand.
void AddHeapGauge(std::vector<int> fds, Metrics* metrics);

}  // namespace agmm
