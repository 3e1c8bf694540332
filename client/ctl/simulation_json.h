// Simulated plans for programs: what `agmmctl simulate --json` prints. Pure.
#pragma once

#include "client/ctl/json.h"
#include "client/ctl/simulated_plans.h"

namespace agmm {

// {"schema": "agmm.simulation.v1", "machine": {"name", "version"}, "problem": as in a plan,
//  "topology": {"node_of_rank"},
//  "torus": null or {"axes": [{"name", "size", "wraps"}], "coordinates": [[of each rank]]},
//  "taken": null or {"algorithm", "options", "why", "hash", "time_ns"}, the plan that daemons take,
//  "plans": [{"algorithm", "options", "why", "refused_by_daemons": as in a plan, "hash", "steps",
//             "time_ns", "gemm_ns", "comm_ns", "bound_ns", "unfused_ns", "overlap": R,
//             "efficiency": E, "speedup", "limit",
//             "resources": [{"name", "busy_ns", "is_link"}], the busiest first,
//             "ranks": [{"rank", "begin_ns", "end_ns", "multiply_ns"}],
//             "chain": [{"rank", "step", "begin_ns", "end_ns", "waits", "text"}]}],
//  "refused": [{"algorithm", "why"}],
//  "tuning_skipped": ["file:line:column: reason"], entries of the table of tuned plans}
// The fastest plan comes first. Ranks are the mesh's.
Json SimulationJson(const Problem& problem, const Platform& platform, const SimulatedPlans& all);

}  // namespace agmm
