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
    kMessages,  // the same in kPieces messages
    kBothWays,  // both of two ranks do as in kOneWay at once
    kCopy,      // each of the ranks copies `size` bytes within its memory
    kProduct,   // each of the ranks multiplies size x size matrices of its own
    kRows,      // each of the ranks multiplies size x kDepth by kDepth x width matrices of its own
    // The same products, but each of two ranks gets half of its rows from the other one.
    kMovingRows,
    kWholeRows,  // the same products, but each begins when all of its rows are there
    // The products of kRows, but each of two ranks gets half of the columns of B from the other
    // one.
    kMovingColumns,
  };
  Kind kind = Kind::kOneWay;
  std::vector<int> ranks;  // of the world
  DType dtype = DType::kF32;
  int64_t size = 0;
  int64_t width = 0;  // of kRows and the kinds after it
  bool operator==(const Probe&) const = default;
};

// The probes send at least this many bytes, and multiples of it.
inline constexpr int64_t kLeastBytes = 128;

// The K of kRows and the kinds after it.
inline constexpr int64_t kDepth = 512;
inline constexpr int kPieces = 8;

// Returns true for a plan of transfers alone between two ranks.
bool IsMessage(const Probe& probe);
// Returns true for a product of which each of two ranks gets a part of an operand from the other.
bool Moves(const Probe& probe);

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
