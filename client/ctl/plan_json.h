// A plan for programs: what `agmmctl plan --json` prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/ctl/json.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/plan.h"

namespace agmm {

// The workspace without its bound, and the part of it for sums of slices of K, on the rank where it
// is largest.
struct Bounded {
  int64_t unbounded_bytes = 0, sum_bytes = 0;
};

// A verified plan and the facts reported about it.
struct PlanReport {
  const Problem& problem;
  const Topology& topology;
  PlanOptions options;  // OptionsOf its recipe
  std::string why;      // ResolvedOptions::why
  std::string refused;  // why daemons refuse it; empty if they do not
  Schedule schedule;
  std::vector<Traffic> traffic;     // by rank
  int64_t least_between_nodes = 0;  // LeastBetweenNodes
  std::optional<Bounded> bounded;   // of a plan with a bounded workspace
};

// The structs of kernels/schedule field by field, so that other programs can verify the plan.
// Format 2, where R is a rank of the mesh:
//   {"schema": "agmm.plan.v1", "format": 2, "algorithm": "ring", "hash": 16 hex digits,
//    "problem": {"spec": "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
//                "mesh": {"axes": [{"name", "size"}], "ranks": [world rank of each R]},
//                "m", "n", "k", "tensors": ["A", "B", "C"],
//                "operands": [{"name", "rows", "cols", "dtype", "row_dim", "col_dim",
//                              "row_axes": ["x"], "col_axes": [], "open_axes": []}]},
//    "topology": {"node_of_rank": [node of each R]},
//    "options": {"split": "N=x", "chunks", "k_chunks", "workspace_shards": 0 for all,
//                "partials": "f32", "carried"},
//    "why": why these were chosen, or null,
//    "refused_by_daemons": why daemons refuse the plan, or null,
//    "moved": {"own_node", "other_nodes": bytes of an epoch, "least_other_nodes": no plan of this
//              split sends fewer},
//    "workspace_bytes", "bounded": null or {"unbounded_bytes", "sum_bytes"} of a bounded workspace,
//    "ranks": [{"rank": R, "node", "steps": [step]}]}
//   step:     {"lane", "op", ..., "waits": [{"slot": "R:index", "lag"}], "signals": ["R:index"]}
//   join:     nothing else
//   transfer: "block", "from": place, "to": [place], "carrier"
//   multiply: "a", "b", "c": blocks, "a_place", "b_place", "acc" (place or null), "out": places,
//             "accumulate", "finish"
//   reduce:   "c": block, "from", "into", "out": places, "finish"
//   block:    {"operand": "A", "rows": [begin, end], "cols": [begin, end]}
//   place:    {"rank": R, "buffer": "A" or "workspace", "offset", "pitch": bytes, "dtype"}
Json PlanJson(const PlanReport& planned);
// The fields "problem" and "options" of a plan.
Json ProblemJson(const Problem& problem);
Json OptionsJson(const PlanOptions& options);

}  // namespace agmm
