// Gauges of this process.
#pragma once

#include <vector>

#include "daemon/observe/metrics.h"

namespace agmm {

// process_resident_bytes, process_allocated_bytes, process_uptime_seconds, process_open_fds.
void AddProcessGauges(Metrics* metrics);

// Adds heap_resident_bytes: the resident memory of the heaps' files; a heap without a file (-1)
// counts as 0. Memory that was written once stays resident after it is freed, so that the next
// tensor there causes no page faults.
void AddHeapGauge(std::vector<int> fds, Metrics* metrics);

}  // namespace agmm
