// Bounds of requests that client and daemon must agree on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agmm {

// Epochs of one job.
inline constexpr int kMaxRepeat = 1'000'000;
// One job of RunJobs, so that it fits the messages of streams.
inline constexpr size_t kMaxJobBytes = 1 << 20;
// Jobs in one RunJobsRequest, and jobs of one stream without an outcome.
inline constexpr int kMaxUnansweredJobs = 4096;
// OpenSessionRequest::program.
inline constexpr size_t kMaxProgramBytes = 128;
// Entries of one page of a list, by default and at most.
inline constexpr int kDefaultPage = 100, kMaxPage = 1000;

}  // namespace agmm
