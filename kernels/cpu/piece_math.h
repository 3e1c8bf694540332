// The arithmetic of one piece of a step, on the calling worker's thread.
#pragma once

#include "absl/status/status.h"
#include "kernels/cpu/program.h"

namespace agmm {

// Returns the scratch that a worker needs for the pieces of `step`.
ScratchNeed NeedOf(const ProgramStep& step);

// Multiplies the piece's rows by `b`. `chip` holds the lane's sums between multiplies: all of op's
// rows, in f32, dense.
absl::Status MultiplyPiece(const GemmOp& op, const Piece& piece, const Operands& operands,
                           const PackedB& b, std::byte* chip, GemmWorker& worker);

// `zero_denormals`: see zero_denormals.h.
void ReducePiece(const ReduceOp& op, const Piece& piece, const Operands& operands,
                 bool zero_denormals);

}  // namespace agmm
