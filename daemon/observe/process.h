// Gauges of this process.
#pragma once

#include "daemon/observe/metrics.h"

namespace agmm {

// process_resident_bytes, process_uptime_seconds, process_open_fds.
void AddProcessGauges(Metrics* metrics);

}  // namespace agmm
