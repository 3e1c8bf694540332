// Files of traces (client/trace/trace_events.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/trace/ordered_json.h"

namespace agmm {

// Writes the document `trace`, whose "traceEvents" are those of TraceEvents, to a file, and returns
// the number of its steps. Errors: those of the file.
absl::StatusOr<int64_t> WriteTrace(const std::string& path, const Json& trace);

// "t.json: 960 steps; open it in https://ui.perfetto.dev or chrome://tracing", a line.
std::string TraceFileText(const std::string& path, int64_t steps);

}  // namespace agmm
