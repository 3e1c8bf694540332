// Describes a step for people: in traces and in the progress of a job.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/schedule/schedule.h"

namespace agmm {

struct Action {
  // "multiply A[0:512] x B", "send rows 0:512 of A to rank 3", "join"; ranks are the world's.
  std::string text;
  const char* category;  // "multiply", "transfer", "reduce" or "join"
  const char* unit;      // "bytes" or "flop"
  int64_t amount;        // in `unit`, for all destinations together
};

Action ActionOf(const Problem& problem, const Step& step);

}  // namespace agmm
