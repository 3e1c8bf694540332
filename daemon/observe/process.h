// Gauges of this process.
#pragma once

#include <string>
#include <vector>

#include "daemon/observe/metrics.h"

namespace agmm {

// process_resident_bytes, process_allocated_bytes, process_uptime_seconds, process_open_fds.
void AddProcessGauges(Metrics* metrics);

// "Intel(R) Xeon(R) Platinum 8481C, 2 processors": the model and number of the host's processors;
// empty if the host does not tell.
std::string ProcessorName();

// Adds heap_resident_bytes: the resident memory of the heaps' files; a heap without a file (-1)
// counts as 0. Memory that was written once stays resident after it is freed, so that the next
// tensor there causes no page faults.
void AddHeapGauge(std::vector<int> fds, Metrics* metrics);

}  // namespace agmm
