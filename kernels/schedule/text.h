// Schedules and their parts as text: for errors, traces, diffs and golden files.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/schedule/schedule.h"

namespace agmm {

inline constexpr char kWorkspaceText[] = "workspace";

// Returns the usual name of what a problem without a product does: "all-gather", "reduce-scatter",
// "all-reduce", "all-to-all", "slice" (each rank keeps a part of its shard), "copy", "reshard", or
// "reduce and reshard".
std::string CollectiveName(const Problem& problem);

// Returns the tensor's name; "workspace" for kWorkspace; "#3" if names do not distinguish operands.
std::string OperandText(const Problem& problem, int operand);

// "A[0:4, 0:8]".
std::string BlockName(const Problem& problem, const Block& block);
// "rank 1's workspace", "rank 1's A".
std::string BufferName(const Problem& problem, Rank rank, Buffer buffer);
// "A[0:4, 0:8] at byte 512 of rank 1's workspace".
std::string PlacedName(const Problem& problem, const Block& block, const Place& place);

// Returns one line per step, with the complete schedule. The tests parse it back.
std::string Print(const Problem& problem, const Schedule& schedule);

// "rows 0:512 of A", with the columns unless the block has all of them.
std::string PartText(const Problem& problem, const Block& block);
// "multiply A[0:512] x B", "send rows 0:512 of A to rank 3", "join"; ranks are the world's.
std::string Describe(const Problem& problem, const Step& step);

// The work of a step of a schedule that verifies.
struct Amount {
  const char* unit;  // "bytes" or "flop"
  int64_t count;     // for all destinations together
};
Amount AmountOf(const Step& step);

}  // namespace agmm
