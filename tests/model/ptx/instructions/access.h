// Accesses of lanes to memory, as loads, stores, atomics, cp.async and multimem share them.
#pragma once

#include "tests/model/ptx/program/decode.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {

// Finds the bytes of a lane's access, and enters it in the race check with the scope of the
// instruction. Throws Stop if they are misaligned or not there.
std::byte* Touch(Warp& warp, const Instruction& instruction, Space space, uint64_t address,
                 uint64_t bytes, int lane, bool write);
// The value that an atomic operation leaves: add 0, exchange 1, compare 2, and, or, xor, min, max,
// inc, dec.
uint64_t CombineValues(int operation, Type type, uint64_t old, uint64_t value, uint64_t second);

Execute DecodeCopyAsync(Instruction& instruction,
                        Modifiers& modifiers);  // copy_async.cc: cp.async, not bulk
Execute DecodeStoreAsync(Instruction& instruction,
                         Modifiers& modifiers);                          // copy_async.cc: st.async
Execute DecodeMultimem(Instruction& instruction, Modifiers& modifiers);  // multimem.cc

}  // namespace ptx
