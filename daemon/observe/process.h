// Gauges of this process.
#pragma once

#include <vector>

#include "daemon/observe/metrics.h"

namespace agmm {

// process_resident_bytes, process_allocated_bytes, process_uptime_seconds, process_open_fds.
void AddProcessGauges(Metrics* metrics);

// heap_resident_bytes: the machine's memory behind the heaps' files; a heap without one (-1) counts
// as none. Memory that was written once stays resident when it is free again, so that the next
// tensor there costs no page faults.
void AddHeapGauge(std::vector<int> fds, Metrics* metrics);

}  // namespace agmm
