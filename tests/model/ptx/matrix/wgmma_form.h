// The forms of wgmma: how the decoder describes them, and the functions that run them.
#pragma once

#include "tests/model/ptx/state/state.h"

namespace ptx {

// In a wgmma.mma_async, Instruction::type is the type of D, from that of A, variant that of B, and
// count is N.
enum WgmmaFlags : uint32_t {
  kRegistersA = 1,
  kTransposedA = 2,
  kTransposedB = 4,
  kNegated = 8,  // the product
};

inline Type TypeOfB(const Instruction& instruction) {
  return static_cast<Type>(instruction.variant);
}

Outcome RunWgmmaFence(Warp& warp, const Instruction& instruction, uint32_t mask);
Outcome RunWgmmaMma(Warp& warp, const Instruction& instruction, uint32_t mask);
Outcome RunWgmmaCommit(Warp& warp, const Instruction& instruction, uint32_t mask);
Outcome RunWgmmaWait(Warp& warp, const Instruction& instruction, uint32_t mask);

}  // namespace ptx
