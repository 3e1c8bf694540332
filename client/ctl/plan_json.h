// A plan as JSON: the structs of kernels/schedule field for field, enough for someone else to prove
// it.
#pragma once

#include <nlohmann/json.hpp>

#include "kernels/schedule/schedule.h"

namespace agmm {

// Format 1. The schema, where R is a rank of the mesh:
//   {"schema": "agmm.plan.v1", "format": 1, "algorithm": "ring", "hash": 16 hex digits,
//    "problem": {"spec": "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
//                "mesh": {"axes": [{"name", "size"}], "ranks": [world rank of each R]},
//                "m", "n", "k", "tensors": ["A", "B", "C"],
//                "operands": [{"name", "rows", "cols", "dtype", "row_dim", "col_dim",
//                              "row_axes": ["x"], "col_axes": []}]},
//    "topology": {"node_of_rank": [node of each R]},
//    "workspace_bytes",
//    "ranks": [{"rank": R, "node", "steps": [step]}]}
//   step:     {"lane", "op", ..., "waits": [{"slot": "R:index", "lag"}], "signals": ["R:index"]}
//   transfer: "block", "from": place, "to": [place], "carrier"
//   multiply: "a", "b", "c": blocks, "a_place", "b_place", "acc" (place or null), "out": places,
//             "accumulate", "finish"
//   reduce:   "c": block, "from", "into", "out": places, "finish"
//   block:    {"operand": "A", "rows": [begin, end], "cols": [begin, end]}
//   place:    {"rank": R, "buffer": "A" or "workspace", "offset", "pitch": bytes, "dtype"}
nlohmann::ordered_json PlanJson(const Problem& problem, const Topology& topology,
                                const Schedule& schedule);

}  // namespace agmm
