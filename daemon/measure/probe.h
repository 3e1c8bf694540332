// Plans that are run to be timed. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/sequencer/admission.h"
#include "kernels/base/dtype_traits.h"

namespace agmm::measure {

struct Probe {
  enum class Kind {
    kOneWay,    // ranks[0] sends `size` bytes to ranks[1], which signals when it can take the next
    kBothWays,  // both of two ranks do so at once
    kCopy,      // each of the ranks copies `size` bytes within its memory
    kProduct,   // each of the ranks multiplies size x size matrices of its own
    kRows,      // each of the ranks multiplies size x kDepth by kDepth x width matrices of its own
    // The same products, but each of two ranks gets half of its rows from the other one.
    kMovingRows,
  };
  Kind kind = Kind::kOneWay;
  std::vector<int> ranks;  // of the world
  DType dtype = DType::kF32;
  int64_t size = 0;
  int64_t width = 0;  // of kRows and kMovingRows
  bool operator==(const Probe&) const = default;
};

// The probes send at least this many bytes, and multiples of it.
inline constexpr int64_t kLeastBytes = 128;

// The K of kRows and kMovingRows.
inline constexpr int64_t kDepth = 512;

// "4 MiB from rank 0 to rank 1".
std::string Describe(const Probe& probe);

// Returns the probe as a job without tensors, whose topology is that of `nodes` and `islands`, by
// world rank.
absl::StatusOr<JobSpec> JobOf(const Probe& probe, const std::vector<int>& nodes,
                              const std::vector<int>& islands);

// The places of a probe's operands in a piece of memory that is the same on all of its ranks.
struct Layout {
  std::vector<int64_t> offset_bytes;  // by operand
  int64_t workspace_offset_bytes = 0;
  int64_t bytes = 0;  // of the whole piece
};
Layout LayOut(const Problem& problem, int64_t workspace_bytes);

}  // namespace agmm::measure
