// A simulated epoch as a trace (client/trace/trace_events.h). Pure.
#pragma once

#include <string>

#include "client/ctl/json.h"
#include "kernels/predict/simulate.h"

namespace agmm {

// {"schema": "agmm.trace.v1", "displayTimeUnit": "ms",
//  "otherData": {"machine", "spec", "algorithm", "epoch_begin_us"},
//  "traceEvents": those of TraceEvents}
//
// Contains the second epoch, from the earliest start of one of its steps; "epoch_begin_us" is the
// time since then at which the first rank began the epoch. A transfer's slice ends when its source
// has been read, and its arrows begin there, even if the bytes arrive later.
Json TraceOf(const Problem& problem, const Topology& topology, const Schedule& schedule,
             const Simulation& simulation, const std::string& machine);

}  // namespace agmm
