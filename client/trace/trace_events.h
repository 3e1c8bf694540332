// The times of a schedule's steps in Chrome's trace event format, which Perfetto reads, too: slices
// for steps and waits, arrows for signals. Source: "Trace Event Format", the JSON object form.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/trace/ordered_json.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// The times of a step in us since the trace's zero. A step that has not ended ends where the trace
// does.
struct TracedStep {
  double ready_us = 0;  // the step before it in its lane has ended
  double begin_us = 0;  // all of its waits hold; if not `begun`, the end of the wait so far
  double end_us = 0;
  bool begun = false, over = false;
};

struct TracedRank {
  int node = 0;
  int epoch = 1;                  // arrows join only steps of one epoch
  std::vector<TracedStep> steps;  // by step; empty: without times
};

// A schedule that ran, or was simulated.
struct TracedPlan {
  Problem problem;
  Schedule schedule;
  std::vector<TracedRank> ranks;  // by rank of the mesh
  Json args = Json::object();     // the first arguments of every slice
};

// Returns a process for each node, a thread for each lane of each rank, and their events:
//   process_name of each node, thread_name and thread_sort_index of each lane,
//   {"ph": "X", "name": "multiply A[0:512] x B", "cat": "multiply", "pid": node, "tid": lane of a
//    rank, "ts", "dur": microseconds,
//    "args": {..., "rank", "lane", "step", "epoch", "waits": ["3:2"], "signals": ["0:1"], "bytes"
//             or "flop", "over"}},
//   the wait of a step, between the step before it in its lane and its own start:
//   {"ph": "X", "name": "wait for rank 2: send rows 0:512 of A to rank 3", "cat": "wait", ...,
//    "args": {..., "rank", "lane", "step", "epoch", "waits", "over"}},
//   from each signal to the step that waited for it: {"ph": "s"} and {"ph": "f"} of one "id".
// Waits on the previous epoch end in "-1", and have no arrows. Ranks are the world's. Pure.
Json TraceEvents(const std::vector<TracedPlan>& plans,
                 const std::function<std::string(int node)>& node_name);

}  // namespace agmm
