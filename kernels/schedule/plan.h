// Planners: Problem + Topology + options -> Schedule. Pure, deterministic, integers only, so that
// every daemon plans the same schedule for itself.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

struct PlanOptions {
  std::string algorithm = "auto";  // auto | serial | ring | direct | peer
  int chunks = 0;  // pieces of each shard that travel and multiply on their own; 0: chosen
  bool operator==(const PlanOptions&) const = default;
};

inline constexpr int kMaxChunks = 256;

// What PlanOptions::algorithm may be.
const std::vector<std::string>& Algorithms();

// Fills in what was left open ("auto", 0 chunks); what comes out plans the same on every daemon.
// Errors: INVALID_ARGUMENT for an unknown algorithm, a chunk count outside [0, kMaxChunks], or peer
// where ranks of different nodes gather together.
absl::StatusOr<PlanOptions> ResolveOptions(const Problem& problem, const Topology& topology,
                                           const PlanOptions& options);

// One sentence: why ResolveOptions chose what it chose. Empty where all that was asked for is what
// runs.
std::string ExplainChoice(const Problem& problem, const PlanOptions& asked,
                          const PlanOptions& resolved);

// Errors: INVALID_ARGUMENT for a problem or options that mean nothing; UNIMPLEMENTED for a product
// that no planner covers.
absl::StatusOr<Schedule> Plan(const Problem& problem, const Topology& topology,
                              const PlanOptions& options);

// What Plan calls at its end: the same schedule without the waits that others imply and the signals
// that nobody awaits, slots renumbered densely. Idempotent.
Schedule Close(const Schedule& schedule);

}  // namespace agmm
