// C (+)= A * B of bf16 with sums in f32, by the tiles of AMX: for matrices of any pitch, in blocks
// that oneDNN 2.6 does not cut (NOTES.md). A row's sums run along K one step of 32 after the other,
// whatever is multiplied along.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/convert.h"

namespace agmm {

// Whether the kernel gives the tiles of a processor that has them, with bf16, to this process.
bool AskForTiles();

// B[k, n] of bf16 as MultiplyTiles reads it; `packed` begins on a cache line.
int64_t PackedTileBytes(int64_t n, int64_t k);
void PackTiles(ConstMatrix b, int64_t n, int64_t k, std::byte* packed);

struct TileProduct {
  int64_t rows = 0, n = 0, k = 0;
  bool add = false;  // to what C holds, which is f32

  // Of the memory, on a cache line, that MultiplyTiles takes besides.
  int64_t ScratchBytes() const;
};
// A[rows, k] of bf16; C[rows, n] of f32, or of bf16. Only once AskForTiles().
void MultiplyTiles(const TileProduct& product, ConstMatrix a, const std::byte* packed_b, Matrix c,
                   std::byte* scratch);

}  // namespace agmm
